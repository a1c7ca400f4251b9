#include "emulated/environment.h"

#include <fmt/format.h>

#include <cstdlib>
#include <stdexcept>

namespace emulated {

int number_of(const char* variable, int initial, int least, int most) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return initial;
  char* end = nullptr;
  const long number = std::strtol(text, &end, 10);
  if (*end != '\0' || number < least || number > most) {
    throw std::invalid_argument(
        fmt::format("{} is '{}', expected {} to {}", variable, text, least, most));
  }
  return static_cast<int>(number);
}

uint64_t seed_of(const char* variable, const char* meanings) {
  const char* const text = std::getenv(variable);
  if (text == nullptr || *text == '\0') return 0;
  char* end = nullptr;
  const uint64_t seed = std::strtoull(text, &end, 10);
  if (*end != '\0' || *text == '-') {
    throw std::invalid_argument(
        fmt::format("{} is '{}', expected a seed: {}", variable, text, meanings));
  }
  return seed;
}

}  // namespace emulated
