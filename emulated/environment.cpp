#include "emulated/environment.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace emulated {
namespace {

// True if the whole text is a number that fits. Blanks and a plus sign are refused, and for an
// unsigned number also a minus sign. strtoull would skip blanks, and would wrap -5 around.
template <class T>
bool parse(const char* text, T& number) {
  const char* const end = text + std::strlen(text);
  const auto [last, error] = std::from_chars(text, end, number);
  return error == std::errc() && last == end;
}

}  // namespace

int number_of(const char* variable, int initial, int least, int most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return initial;
  int number = 0;
  if (!parse(text, number) || number < least || number > most) {
    throw std::invalid_argument(
        fmt::format("{} is '{}', expected {} to {}", variable, text, least, most));
  }
  return number;
}

uint64_t seed_of(const char* variable, const char* meanings) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return 0;
  uint64_t seed = 0;
  if (!parse(text, seed)) {
    throw std::invalid_argument(
        fmt::format("{} is '{}', expected a seed from 0 to 2^64 - 1, in digits only: {}", variable,
                    text, meanings));
  }
  return seed;
}

}  // namespace emulated
