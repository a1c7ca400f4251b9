// Reads JSON from outside Tessera, within limits. Only lines that Tessera's programs have written
// (logs, records of ranks) are read without these functions.
//
//   const nlohmann::json config = read_json_file("config.json", {.bytes = 1 << 20});
//   const int64_t layers = json_integer("config.json: n_layer", config.at("n_layer"));
//
// A text that is too long, is nested too deep or has too many values is refused with InputError.
// Parsing stops at the first value beyond a limit, so no memory is allocated for later values. An
// object that has a name twice is refused too, because JSON readers differ in which of the two
// values they use.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace tessera {

struct JsonLimits {
  int64_t bytes = int64_t{1} << 24;  // size of the text
  int64_t depth = 32;                // nesting depth of lists and objects
  int64_t values = 2'000'000;        // number of values; lists and objects count too
};

/// Parses a text. Throws InputError if the text is not valid JSON or exceeds a limit. Every error
/// message begins with `where`: the file and, if the text is only a part of the file, that part.
nlohmann::json parse_json(const std::string& where, std::string_view text,
                          const JsonLimits& limits = {});

/// Reads a regular file. Throws InputError if the file has more than `most_bytes`. Otherwise throws
/// as InputFile does (core/text/input_file.h).
std::string read_text_file(const std::string& path, int64_t most_bytes);
/// Parses a file. Throws as read_text_file and parse_json do.
nlohmann::json read_json_file(const std::string& path, const JsonLimits& limits = {});

/// Returns `value` if it is a whole number from `least` to `greatest`, written without fraction and
/// exponent. Otherwise throws InputError. The message begins with `what`.
int64_t json_integer(const std::string& what, const nlohmann::json& value,
                     int64_t least = std::numeric_limits<int64_t>::min(),
                     int64_t greatest = std::numeric_limits<int64_t>::max());

/// Returns the JSON text of a value for an error message: in ASCII, cut after 100 characters.
std::string json_excerpt(const nlohmann::json& value);

}  // namespace tessera
