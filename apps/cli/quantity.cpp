#include "apps/cli/quantity.h"

#include <cmath>
#include <cstdlib>
#include <optional>

#include "core/error.h"

namespace tessera::apps {
namespace {

struct Quantity {
  double number = 0;
  std::string unit;
};

Quantity split(const char* flag, const std::string& text) {
  char* end = nullptr;
  const double number = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || !std::isfinite(number)) {
    fail_input("{} is '{}', expected a number, which may have a unit", flag, text);
  }
  std::string unit = end;
  while (!unit.empty() && unit.front() == ' ') unit.erase(0, 1);
  return {number, unit};
}

bool drop_end(std::string& text, const std::string& end) {
  if (!text.ends_with(end)) return false;
  text.resize(text.size() - end.size());
  return true;
}

// 1 for "", 1000 for "k" or "K", 1024 for "Ki", ...
std::optional<double> prefix(std::string text) {
  const double base = drop_end(text, "i") ? 1024 : 1000;
  if (text.empty()) return base == 1000 ? std::optional(1.0) : std::nullopt;
  if (text == "k") text = "K";
  constexpr std::string_view prefixes = "KMGTPE";
  const size_t place = prefixes.find(text);
  if (text.size() != 1 || place == std::string_view::npos) return std::nullopt;
  return std::pow(base, static_cast<double>(place + 1));
}

double scaled(const char* flag, const std::string& text, const std::string& unit,
              const char* example) {
  const double number = split(flag, text).number;
  const std::optional<double> factor = prefix(unit);
  if (!factor) fail_input("{} is '{}', expected a quantity such as {}", flag, text, example);
  const double value = number * *factor;
  if (!(value > 0)) fail_input("{} is '{}', expected more than 0", flag, text);
  return value;
}

}  // namespace

int64_t parse_bytes(const char* flag, const std::string& text) {
  std::string unit = split(flag, text).unit;
  drop_end(unit, "B");
  const double bytes = scaled(flag, text, unit, "80GB or 24GiB");
  constexpr double most = 4e18;
  if (bytes < 1 || bytes > most) {
    fail_input("{} is '{}', expected from 1 byte to 4 EB", flag, text);
  }
  return static_cast<int64_t>(bytes);
}

double parse_rate(const char* flag, const std::string& text) {
  std::string unit = split(flag, text).unit;
  drop_end(unit, "/s");
  drop_end(unit, "B");
  return scaled(flag, text, unit, "25GB or 10GiB/s");
}

double parse_flops(const char* flag, const std::string& text) {
  std::string unit = split(flag, text).unit;
  drop_end(unit, "/s");
  return scaled(flag, text, unit, "400T or 1.5e14");
}

double parse_seconds(const char* flag, const std::string& text) {
  const auto [number, unit] = split(flag, text);
  double factor = 1;
  if (unit == "ms") {
    factor = 1e-3;
  } else if (unit == "us") {
    factor = 1e-6;
  } else if (unit == "ns") {
    factor = 1e-9;
  } else if (!unit.empty() && unit != "s") {
    fail_input("{} is '{}', expected a time such as 5us or 0.1ms", flag, text);
  }
  if (number < 0) fail_input("{} is '{}', expected at least 0", flag, text);
  return number * factor;
}

}  // namespace tessera::apps
