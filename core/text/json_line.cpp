#include "core/text/json_line.h"

#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace tessera {
namespace {

template <class T>
std::string shortest(T value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

}  // namespace

std::string json_number(float value) { return shortest(value); }
std::string json_number(double value) { return shortest(value); }

std::string json_string(std::string_view text) {
  // A path may contain bytes that are not UTF-8, which JSON does not allow.
  return nlohmann::json(std::string(text))
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string JsonObject::text() const {
  std::string result = "{";
  for (const auto& [name, value] : members_) {
    if (result.size() > 1) result += ',';
    result += name + ":" + value;
  }
  return result + "}";
}

std::string JsonObject::indented() const {
  std::string result = "{";
  for (const auto& [name, value] : members_) {
    result += (result.size() > 1 ? ",\n  " : "\n  ") + name + ": " + value;
  }
  return result + "\n}";
}

}  // namespace tessera
