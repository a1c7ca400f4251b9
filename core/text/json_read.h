// JSON that others wrote, within bounds: whatever file or text is read as JSON is read here.
//
//   const nlohmann::json config = read_json_file("config.json", {.bytes = 1 << 20});
//   const int64_t layers = json_integer("config.json: n_layer", config.at("n_layer"));
//
// A text that is too long, nested too deep or of too many values, and one in which a name comes
// twice in an object, is an InputError before memory is taken for it. (Readers differ in which of
// two values they take.)
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tessera {

struct JsonLimits {
  int64_t bytes = int64_t{1} << 24;  // of the text
  int64_t depth = 32;                // lists and objects within each other
  int64_t values = 2'000'000;        // lists and objects too
};

/// `where` begins the errors: the file, and the part of it that the text is.
nlohmann::json parse_json(const std::string& where, std::string_view text,
                          const JsonLimits& limits = {});

/// The text of a regular file of at most `most_bytes`. Throws InputError, and Error where reading
/// fails.
std::string read_text_file(const std::string& path, int64_t most_bytes);
nlohmann::json read_json_file(const std::string& path, const JsonLimits& limits = {});

/// A whole number from `least` to `greatest`. Throws InputError; `what` begins it.
int64_t json_integer(const std::string& what, const nlohmann::json& value,
                     int64_t least = std::numeric_limits<int64_t>::min(),
                     int64_t greatest = std::numeric_limits<int64_t>::max());

/// A value in an error: its text in ASCII, cut where it is long.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace tessera
