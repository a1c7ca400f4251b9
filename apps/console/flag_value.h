// Strict conversion of a flag's text to a value: the whole text must be one value within the type's
// range, or it is refused. Nothing is saturated, wrapped or taken to be 0.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace tessera::apps {

// Each throws InputError. `what` begins it: a flag, "--steps", or file and line, "a.cfg:3: steps".

std::string parse_text(const std::string& what, const std::string& text);  // not empty
int64_t parse_integer(const std::string& what, const std::string& text,
                      int64_t least = std::numeric_limits<int64_t>::min(),
                      int64_t greatest = std::numeric_limits<int64_t>::max());
bool parse_bool(const std::string& what, const std::string& text);  // true or false
/// A finite number that the type holds: neither too large, nor so small that 0 would be left.
template <class T>  // float, double
T parse_float(const std::string& what, const std::string& text);

/// Where std::from_chars begins, which takes a minus and no plus.
const char* without_plus(const std::string& text);

/// A text in an error: on one line, and cut where it is long; and in quotes.
std::string one_line(const std::string& text);
std::string quoted(const std::string& text);

}  // namespace tessera::apps
