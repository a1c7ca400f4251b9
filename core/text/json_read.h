// Reads JSON from outside of the program, within limits. All files and texts in JSON are read here.
//
//   const nlohmann::json config = read_json_file("config.json", {.bytes = 1 << 20});
//   const int64_t layers = json_integer("config.json: n_layer", config.at("n_layer"));
//
// A text that is too long, nested too deep or has too many values throws InputError before memory
// is taken for it. So does an object that has a name twice, because readers differ in which of the
// two values they take.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tessera {

struct JsonLimits {
  int64_t bytes = int64_t{1} << 24;  // of the text
  int64_t depth = 32;                // of lists and objects within each other
  int64_t values = 2'000'000;        // including lists and objects
};

/// Parses a text. `where` begins every error: the file, and which part of it the text is.
nlohmann::json parse_json(const std::string& where, std::string_view text,
                          const JsonLimits& limits = {});

/// Reads a regular file of at most `most_bytes`. Throws InputError if it cannot be opened or is
/// longer, and Error if reading fails.
std::string read_text_file(const std::string& path, int64_t most_bytes);
/// Parses a file. Throws as the two functions above.
nlohmann::json read_json_file(const std::string& path, const JsonLimits& limits = {});

/// Returns `value` if it is a whole number from `least` to `greatest`; else throws InputError,
/// which begins with `what`.
int64_t json_integer(const std::string& what, const nlohmann::json& value,
                     int64_t least = std::numeric_limits<int64_t>::min(),
                     int64_t greatest = std::numeric_limits<int64_t>::max());

/// The text of a value for an error: ASCII, cut if it is long.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace tessera
