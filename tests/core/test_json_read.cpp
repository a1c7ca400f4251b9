#include "core/text/json_read.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::Equals;

namespace {

std::string repeated(const std::string& text, int64_t count) {
  std::string all;
  for (int64_t i = 0; i < count; ++i) all += text;
  return all;
}

std::string refusal(const std::string& text, const JsonLimits& limits = {}) {
  return test::message_of<InputError>([&] { parse_json("a.json", text, limits); });
}

}  // namespace

TEST_CASE("JSON is read up to limits on its size, depth and values") {
  const JsonLimits limits{.bytes = 20, .depth = 3, .values = 5};
  CHECK(parse_json("a", R"({"a":{"b":[1,2]}})", limits)["a"]["b"][1] == 2);
  CHECK_THAT(refusal(R"([1,2,3,4,5])", limits), Equals("a.json: has more than 5 values"));
  CHECK_THAT(refusal("[[[[]]]]", limits),
             Equals("a.json: is nested deeper than 3 lists and objects"));
  CHECK_THAT(refusal(repeated(" ", 19) + "[]", limits),
             Equals("a.json: has 21 bytes, expected at most 20"));
}

TEST_CASE("JSON nested 200,000 deep is refused, closed or not, in lists and in objects") {
  constexpr int64_t deep = 200'000;
  for (const std::string open : {"[", "{\"a\":"}) {
    const std::string close = open == "[" ? "]" : "}";
    CHECK_THAT(refusal(repeated(open, deep)), ContainsSubstring("nested deeper than 32"));
    CHECK_THAT(refusal(repeated(open, deep) + "1" + repeated(close, deep)),
               ContainsSubstring("nested deeper than 32"));
  }
}

TEST_CASE("invalid JSON is refused, with file and position") {
  CHECK_THAT(refusal(""), Equals("a.json: is not valid JSON: it ends early, after 0 bytes"));
  CHECK_THAT(refusal("{\"a\":"), ContainsSubstring("it ends early, after 5 bytes"));
  CHECK_THAT(refusal("[1,]"), Equals("a.json: is not valid JSON, at byte 4 of 4"));
  CHECK_THAT(refusal("\xff"), ContainsSubstring("is not valid JSON"));
  CHECK_THAT(refusal(std::string("{}\0junk", 7)),
             Equals("a.json: is not valid JSON, at byte 3 of 7"));
  CHECK_THAT(refusal("[1e999]"), ContainsSubstring("a.json: is not valid JSON: \""));
  CHECK_THAT(refusal(R"({"a":1,"b":{"a":1},"a":2})"), Equals("a.json: has the name \"a\" twice"));
}

TEST_CASE("whole numbers of JSON keep their value or are refused") {
  const auto integer = [](const char* text) {
    return json_integer("a", parse_json("a.json", text), -3, INT64_MAX);
  };
  CHECK(integer("-3") == -3);
  CHECK(integer("9223372036854775807") == INT64_MAX);
  for (const char* text : {"-4", "9223372036854775808", "18446744073709551615", "1.0", "1e3",
                           "99999999999999999999", "true", "null", "\"1\"", "[1]"}) {
    INFO(text);
    CHECK_THAT(test::message_of<InputError>([&] { integer(text); }),
               ContainsSubstring(", expected a whole number from -3 to 9223372036854775807"));
  }
  // If the caller gives no limits, the message names a limit only for a number beyond int64.
  const auto unlimited = [](const char* text) {
    return test::message_of<InputError>([&] { json_integer("a", parse_json("a.json", text)); });
  };
  CHECK(unlimited("2.0") == "a is 2.0, expected a whole number");
  CHECK(unlimited("9223372036854775808") ==
        "a is 9223372036854775808, expected a whole number of at most 9223372036854775807");
  CHECK(unlimited("1e30") == "a is 1e+30, expected a whole number of at most 9223372036854775807");
  const std::string long_text = fmt::format("\"{}\"", std::string(1000, 'x'));
  CHECK(test::message_of<InputError>([&] { integer(long_text.c_str()); }).size() < 200);
}

TEST_CASE("only regular files of a bounded size are read as text") {
  const test::TemporaryFolder folder;
  const std::string path = folder.file("a.txt", "12345");
  CHECK(read_text_file(path, 5) == "12345");
  const auto refused = [](const std::string& name) {
    return test::message_of<InputError>([&] { read_text_file(name, 4); });
  };
  CHECK_THAT(refused(path), ContainsSubstring("a.txt: has 5 bytes, expected at most 4"));
  CHECK_THAT(refused("/tmp"), ContainsSubstring("is not a regular file"));
  CHECK_THAT(refused("/no/such"), ContainsSubstring("cannot be opened: No such file"));
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THAT(refused(pipe), ContainsSubstring("is not a regular file"));
}
