#include "core/text/json_read.h"

#include <set>
#include <vector>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/text/input_file.h"

namespace tessera {
namespace {

using nlohmann::json;

// A callback of the parser that throws at the first value beyond a limit, and at a repeated name.
class Watch {
 public:
  Watch(const std::string& where, const JsonLimits& limits) : where_(where), limits_(limits) {}

  bool operator()(int /*depth*/, json::parse_event_t event, json& parsed) {
    using Event = json::parse_event_t;
    switch (event) {
      case Event::object_start:
      case Event::array_start:
        count();
        if (std::ssize(names_) == limits_.depth) {
          fail_input("{}: is nested deeper than {} lists and objects", where_, limits_.depth);
        }
        names_.emplace_back();
        break;
      case Event::object_end:
      case Event::array_end:
        names_.pop_back();
        break;
      case Event::key:
        if (!names_.back().insert(parsed.get_ref<const std::string&>()).second) {
          fail_input("{}: has the name {} twice", where_, json_excerpt(parsed));
        }
        break;
      case Event::value:
        count();
        break;
    }
    return true;
  }

 private:
  void count() {
    if (++values_ > limits_.values) {
      fail_input("{}: has more than {} values", where_, limits_.values);
    }
  }

  const std::string& where_;
  const JsonLimits& limits_;
  // The member names so far of each open object, outermost first. Open lists have empty sets.
  std::vector<std::set<std::string>> names_;
  int64_t values_ = 0;
};

}  // namespace

json parse_json(const std::string& where, std::string_view text, const JsonLimits& limits) {
  if (std::ssize(text) > limits.bytes) {
    fail_input("{}: has {} bytes, expected at most {}", where, text.size(), limits.bytes);
  }
  // The library takes a NUL for the end of the text, and would ignore what follows.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    fail_input("{}: is not valid JSON, at byte {} of {}", where, nul + 1, text.size());
  }
  try {
    return json::parse(text, Watch(where, limits));
  } catch (const json::parse_error& error) {
    if (error.byte > text.size()) {
      fail_input("{}: is not valid JSON: it ends early, after {} bytes", where, text.size());
    }
    fail_input("{}: is not valid JSON, at byte {} of {}", where, error.byte, text.size());
  } catch (const json::exception& error) {  // such as a number that is too large
    fail_input("{}: is not valid JSON: {}", where, json_excerpt(error.what()));
  }
}

std::string read_text_file(const std::string& path, int64_t most_bytes) {
  const InputFile file(path);
  if (file.size() > most_bytes) {
    fail_input("{}: has {} bytes, expected at most {}", path, file.size(), most_bytes);
  }
  std::string text(static_cast<size_t>(file.size()), '\0');
  file.read_at(0, text.data(), text.size());
  return text;
}

json read_json_file(const std::string& path, const JsonLimits& limits) {
  return parse_json(path, read_text_file(path, limits.bytes), limits);
}

int64_t json_integer(const std::string& what, const json& value, int64_t least, int64_t greatest) {
  const bool fits = value.is_number_unsigned() ? value.get<uint64_t>() <= uint64_t{INT64_MAX}
                                               : value.is_number_integer();
  if (fits) {
    const auto number = value.get<int64_t>();
    if (number >= least && number <= greatest) return number;
  }
  // The message names the range that the caller allows. If the caller allows every int64, that
  // range would distract. The message then names no range, or only the maximum of int64 if the
  // value is above this maximum. The parser gives numbers beyond 64 bits, and those with an
  // exponent, as doubles.
  const bool above = value.is_number_float() && value.get<double>() >= 0x1p63;
  std::string range;
  if (least != INT64_MIN || greatest != INT64_MAX) {
    range = fmt::format(" from {} to {}", least, greatest);
  } else if (value.is_number_integer() || above) {
    range = fmt::format(" of at most {}", greatest);
  }
  fail_input("{} is {}, expected a whole number{}", what, json_excerpt(value), range);
}

std::string json_excerpt(const json& value) {
  constexpr size_t longest = 100;
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > longest) text = text.substr(0, longest) + "...";
  return text;
}

}  // namespace tessera
