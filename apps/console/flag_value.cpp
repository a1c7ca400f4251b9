#include "apps/console/flag_value.h"

#include <charconv>
#include <cmath>

#include "core/error.h"

namespace tessera::apps {
namespace {

const char* end_of(const std::string& text) { return text.c_str() + text.size(); }

}  // namespace

const char* without_plus(const std::string& text) {
  return text.c_str() + (text.size() > 1 && text[0] == '+' && text[1] != '-' ? 1 : 0);
}

std::string one_line(const std::string& text) {
  constexpr size_t longest = 80;
  std::string shown = text.substr(0, longest);
  for (char& c : shown) {
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = ' ';
  }
  return shown + (text.size() > longest ? "..." : "");
}

std::string quoted(const std::string& text) { return "'" + one_line(text) + "'"; }

std::string parse_text(const std::string& what, const std::string& text) {
  if (text.empty()) fail_input("{} is empty, expected a value", what);
  return text;
}

int64_t parse_integer(const std::string& what, const std::string& text, int64_t least,
                      int64_t greatest) {
  if (text.empty()) fail_input("{} is empty, expected a whole number", what);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(without_plus(text), end_of(text), value);
  if (error == std::errc::invalid_argument || end != end_of(text)) {
    fail_input("{} is {}, expected a whole number", what, quoted(text));
  }
  const bool beyond = error == std::errc::result_out_of_range;
  const bool negative = text[0] == '-';
  // The limits of int64_t would not help a user, so the message leaves them out.
  using Limits = std::numeric_limits<int64_t>;
  if (beyond && (negative ? least == Limits::min() : greatest == Limits::max())) {
    fail_input("{} is {}, which is too {}", what, one_line(text), negative ? "small" : "large");
  }
  if (beyond ? negative : value < least) {
    fail_input("{} is {}, expected at least {}", what, one_line(text), least);
  }
  if (beyond || value > greatest) {
    fail_input("{} is {}, expected at most {}", what, one_line(text), greatest);
  }
  return value;
}

bool parse_bool(const std::string& what, const std::string& text) {
  if (text != "true" && text != "false") {
    fail_input("{} is {}, expected true or false", what, quoted(text));
  }
  return text == "true";
}

template <class T>
T parse_float(const std::string& what, const std::string& text) {
  if (text.empty()) fail_input("{} is empty, expected a number", what);
  T value = 0;
  const auto [end, error] = std::from_chars(without_plus(text), end_of(text), value);
  if (error == std::errc::invalid_argument || end != end_of(text)) {
    fail_input("{} is {}, expected a number", what, quoted(text));
  }
  if (error == std::errc::result_out_of_range) {
    fail_input("{} is {}, which a {} cannot hold", what, quoted(text),
               sizeof(T) == sizeof(float) ? "float" : "double");
  }
  if (!std::isfinite(value)) fail_input("{} is {}, expected a finite number", what, value);
  return value;
}

template float parse_float(const std::string&, const std::string&);
template double parse_float(const std::string&, const std::string&);

}  // namespace tessera::apps
