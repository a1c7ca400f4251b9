#include "apps/console/quantity.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>

#include "apps/console/flag_value.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

struct Quantity {
  double number = 0;
  std::string digits;  // the number as written
  std::string unit;
};

Quantity split(const char* flag, const std::string& text) {
  double number = 0;
  const char* const begin = without_plus(text);
  const auto [end, error] = std::from_chars(begin, begin + text.size(), number);
  if (error != std::errc() || !std::isfinite(number)) {
    fail_input("{} is {}, expected a number, which may have a unit", flag, quoted(text));
  }
  std::string unit = end;
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  return {number, std::string(begin, end), unit};
}

bool drop_end(std::string& text, const std::string& end) {
  if (!text.ends_with(end)) return false;
  text.resize(text.size() - end.size());
  return true;
}

// Returns the factor of a prefix: 1 for "", 1000 for "k" or "K", 1024 for "Ki", ...
std::optional<int64_t> prefix(std::string text) {
  const int64_t base = drop_end(text, "i") ? 1024 : 1000;
  if (text.empty()) return base == 1000 ? std::optional<int64_t>(1) : std::nullopt;
  if (text == "k") text = "K";
  constexpr std::string_view prefixes = "KMGTPE";
  const size_t place = prefixes.find(text);
  if (text.size() != 1 || place == std::string_view::npos) return std::nullopt;
  int64_t factor = base;
  for (size_t i = 0; i < place; ++i) factor *= base;
  return factor;
}

int64_t factor_of(const char* flag, const std::string& text, const std::string& unit,
                  const char* example) {
  const std::optional<int64_t> factor = prefix(unit);
  if (!factor) fail_input("{} is {}, expected a quantity such as {}", flag, quoted(text), example);
  return *factor;
}

double scaled(const char* flag, const std::string& text, const std::string& unit,
              const char* example) {
  const int64_t factor = factor_of(flag, text, unit, example);
  const double value = split(flag, text).number * static_cast<double>(factor);
  if (!(value > 0)) fail_input("{} is {}, expected more than 0", flag, quoted(text));
  return value;
}

// Returns the rate `value`. Throws InputError if the rate is below 1 or above 1e24. No machine has
// such a rate, and computed times could become infinite or NaN.
double a_second(const char* flag, const std::string& text, double value) {
  if (value < 1 || value > 1e24) {
    fail_input("{} is {}, expected from 1 to 1e24 a second", flag, quoted(text));
  }
  return value;
}

}  // namespace

int64_t parse_bytes(const char* flag, const std::string& text, Zero zero, const MostBytes& most) {
  auto [number, digits, unit] = split(flag, text);
  drop_end(unit, "B");
  if (zero == Zero::allowed && number <= 0) {
    factor_of(flag, text, unit, "80GB or 24GiB");  // throws if the unit is unknown
    if (number < 0) fail_input("{} is {}, expected at least 0", flag, quoted(text));
    return 0;
  }
  const double about = scaled(flag, text, unit, "80GB or 24GiB");
  if (about < 1 || about > static_cast<double>(most.bytes)) {
    fail_input("{} is {}, expected {}from 1 byte to {}", flag, quoted(text),
               zero == Zero::allowed ? "0, or " : "", most.text);
  }
  // A double holds whole numbers exactly only up to 2^53, so whole numbers are parsed as integers.
  if (digits.find_first_not_of("0123456789") != std::string::npos) {
    return static_cast<int64_t>(about);
  }
  return parse_integer(flag, digits) * factor_of(flag, text, unit, "");
}

double parse_rate(const char* flag, const std::string& text) {
  std::string unit = split(flag, text).unit;
  drop_end(unit, "/s");
  drop_end(unit, "B");
  return a_second(flag, text, scaled(flag, text, unit, "25GB or 10GiB/s"));
}

double parse_flops(const char* flag, const std::string& text) {
  std::string unit = split(flag, text).unit;
  drop_end(unit, "/s");
  return a_second(flag, text, scaled(flag, text, unit, "400T or 1.5e14"));
}

double parse_seconds(const char* flag, const std::string& text) {
  const auto [number, digits, unit] = split(flag, text);
  double factor = 1;
  if (unit == "ms") {
    factor = 1e-3;
  } else if (unit == "us") {
    factor = 1e-6;
  } else if (unit == "ns") {
    factor = 1e-9;
  } else if (!unit.empty() && unit != "s") {
    fail_input("{} is {}, expected a time such as 5us or 0.1ms", flag, quoted(text));
  }
  constexpr double most = 1e9;
  if (number < 0) fail_input("{} is {}, expected at least 0", flag, quoted(text));
  if (number * factor > most) {
    fail_input("{} is {}, expected at most {:.0f} s", flag, quoted(text), most);
  }
  return number * factor;
}

}  // namespace tessera::apps
