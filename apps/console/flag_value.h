// Strict conversion of a flag's text to a value. The whole text must be one value within the type's
// range. Other texts are refused: no value is clamped, wrapped or replaced with 0.
#pragma once

#include <cstdint>
#include <limits>
#include <string>

namespace tessera::apps {

// The parse functions throw InputError if the text is not a value of the type, or is out of range.
// The message begins with `what`: a flag such as "--steps", or a file, line and key such as
// "a.cfg:3: steps".

std::string parse_text(const std::string& what, const std::string& text);  // refuses ""
int64_t parse_integer(const std::string& what, const std::string& text,
                      int64_t least = std::numeric_limits<int64_t>::min(),
                      int64_t greatest = std::numeric_limits<int64_t>::max());
bool parse_bool(const std::string& what, const std::string& text);  // "true" or "false"
/// Parses a finite number. Refuses values that overflow the type or underflow to 0.
template <class T>  // float, double
T parse_float(const std::string& what, const std::string& text);

/// Skips a leading plus sign, which std::from_chars would refuse. Keeps the plus sign of the text
/// "+" and of texts that begin with "+-", so that std::from_chars refuses these texts.
const char* without_plus(const std::string& text);

/// Formats a text for an error message: one_line replaces control characters and cuts a long text;
/// quoted also puts it in quotes.
std::string one_line(const std::string& text);
std::string quoted(const std::string& text);

}  // namespace tessera::apps
