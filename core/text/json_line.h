// JSON text for the log. A float is written as the shortest text that reads back to the same float.
// A JSON library would convert the float to a double first, and then print more digits.
//
//   JsonObject().add("step", 3).add("loss", 1.25f).text()      -> {"step":3,"loss":1.25}
#pragma once

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace tessera {

/// Returns a float or double as JSON. Infinity and NaN, which JSON does not have, become null.
std::string json_number(float value);
std::string json_number(double value);
/// Returns a text in quotes, with escapes. Bytes that are not UTF-8 are replaced.
std::string json_string(std::string_view text);

/// An object whose members keep the order in which they were added.
class JsonObject {
 public:
  template <std::integral T>
  JsonObject& add(std::string_view name, T value) {
    if constexpr (std::same_as<T, bool>) return raw(name, value ? "true" : "false");
    return raw(name, std::to_string(value));
  }
  template <std::floating_point T>
  JsonObject& add(std::string_view name, T value) {
    return raw(name, json_number(value));
  }
  JsonObject& add(std::string_view name, std::string_view text) {
    return raw(name, json_string(text));
  }
  JsonObject& add(std::string_view name, const char* text) {
    return add(name, std::string_view(text));
  }
  JsonObject& add(std::string_view name, const std::string& text) {
    return add(name, std::string_view(text));
  }
  JsonObject& add(std::string_view name, const JsonObject& object) {
    return raw(name, object.text());
  }
  /// Appends all members of another object.
  JsonObject& append(const JsonObject& other) {
    members_.insert(members_.end(), other.members_.begin(), other.members_.end());
    return *this;
  }
  /// Adds a value that is already JSON text.
  JsonObject& raw(std::string_view name, std::string json) {
    members_.emplace_back(json_string(name), std::move(json));
    return *this;
  }

  std::string text() const;
  /// Returns the object with one member per line, for people to read.
  std::string indented() const;

 private:
  std::vector<std::pair<std::string, std::string>> members_;
};

}  // namespace tessera
