#include "data/files/text_lines.h"

#include <sys/stat.h>

#include "data/files/text_fields.h"
#include "tests/support/catch.h"
#include "tests/support/image_files.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace std::string_literals;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using test::TemporaryFolder;

namespace {

using Strings = std::vector<std::string>;

Strings lines_of(const std::string& bytes) {
  const TemporaryFolder folder;
  data::TextLines lines(folder.file("text", bytes));
  Strings result;
  for (std::string_view line; lines.next(line);) result.emplace_back(line);
  return result;
}

std::string refusal(const std::string& bytes) {
  return test::message_of<InputError>([&] { lines_of(bytes); });
}

Strings split(const std::string& separator, const std::string& line) {
  const TemporaryFolder folder;
  data::TextLines lines(folder.file("text", line));
  std::string_view first;
  REQUIRE(lines.next(first));
  data::FieldSplitter splitter(separator);
  const auto fields = splitter.split(first, lines);
  return {fields.begin(), fields.end()};
}

}  // namespace

TEST_CASE("lines end in LF, CRLF or the end of the file") {
  REQUIRE(lines_of("a\nbc\n") == Strings{"a", "bc"});
  REQUIRE(lines_of("a\r\nbc\r\n") == Strings{"a", "bc"});
  REQUIRE(lines_of("a\nbc") == Strings{"a", "bc"});
  REQUIRE(lines_of("a\n\n\r\n") == Strings{"a"});
  REQUIRE(lines_of("\xEF\xBB\xBFuser") == Strings{"user"});
  REQUIRE(lines_of("").empty());
  REQUIRE(lines_of("\n").empty());
}

TEST_CASE("lines of a text larger than the buffer, compressed or not") {
  // Lines have all lengths up to about 700, and some have the longest allowed length. The text does
  // not fit into the buffer, so some lines are read in two parts.
  Strings expected;
  std::string text;
  for (size_t i = 0; text.size() < 5'000'000; ++i) {
    expected.push_back(std::to_string(i) + std::string(i * 37 % 700, 'x'));
    if (i % 1000 == 0) expected.back().resize(data::TextLines::most_line_bytes, 'y');
    text += expected.back() + '\n';
  }
  REQUIRE(lines_of(text) == expected);
  REQUIRE(lines_of(test::gzipped(text)) == expected);
}

TEST_CASE("invalid texts are refused, with the line") {
  CHECK_THAT(refusal("a\n\nb\n"), EndsWith("text, line 2: is empty"));
  CHECK_THAT(refusal("a\nb\0c\n"s), EndsWith("text, line 2: has a NUL byte, expected text"));
  CHECK_THAT(refusal("a\nb\nc\xff\n"), EndsWith("text, line 3: is not UTF-8: 'c\\xff'"));
  const size_t most = data::TextLines::most_line_bytes;
  REQUIRE(lines_of("a\n" + std::string(most, 'b')).size() == 2);
  CHECK_THAT(refusal("a\n" + std::string(most + 1, 'b')),
             EndsWith("line 2: has more than 65536 bytes"));
  CHECK_THAT(refusal(std::string(3 << 20, 'b')), EndsWith("line 1: has more than 65536 bytes"));
  const std::string packed = test::gzipped("a\nb\n");
  CHECK_THAT(refusal(packed.substr(0, packed.size() - 5)),
             EndsWith("text: cannot be read: its compressed data is cut short"));
}

TEST_CASE("a text of several gzip members is read to the end, or refused") {
  const std::string first = test::gzipped("a\nb\n"), second = test::gzipped("c\n");
  const Strings all{"a", "b", "c"};
  REQUIRE(lines_of(first + second) == all);
  REQUIRE(lines_of(first + second + std::string(300'000, '\0')) == all);
  REQUIRE(lines_of(first + test::gzipped("") + second) == all);
  for (size_t bytes = 1; bytes < second.size(); ++bytes) {
    CHECK_THAT(refusal(first + second.substr(0, bytes)), ContainsSubstring("text: cannot be read"));
  }
  // Changes one byte at a time, except bytes 4 to 9 of the gzip header. These bytes hold a time,
  // flags and the operating system. No checksum covers them, so a change is not detected.
  for (size_t at = 0; at < second.size(); at = at == 3 ? 10 : at + 1) {
    std::string damaged = second;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x41);
    CHECK_THAT(refusal(first + damaged), ContainsSubstring("text: cannot be read"));
  }
  CHECK_THAT(refusal(first + "c\n"),
             EndsWith("text: cannot be read: from byte " + std::to_string(first.size()) +
                      " on it has no compressed data, expected its end"));
  CHECK_THAT(refusal(first + std::string(300'000, '\0') + second),
             ContainsSubstring("has no compressed data"));
}

TEST_CASE("a text that expands over a hundred times is refused before it fills the memory") {
  // The text has 65 MiB of one repeated line. Up to 64 MiB, any expansion is allowed.
  std::string text;
  for (int64_t i = 0; i < 65 << 16; ++i) text += "user\titem\t12345\n";
  CHECK_THAT(refusal(test::gzipped(text)),
             ContainsSubstring("expand to more than 100 times as many: this is not a table"));
}

TEST_CASE("folders, pipes and missing files are refused as texts") {
  const TemporaryFolder folder;
  const auto open = [&](const std::string& name) {
    return test::message_of<InputError>([&] { data::TextLines{folder.path(name)}; });
  };
  CHECK_THAT(open("nothing"), EndsWith("nothing: cannot be opened: No such file or directory"));
  CHECK_THAT(open(""), EndsWith(": is not a regular file"));
  REQUIRE(::mkfifo(folder.path("pipe").c_str(), 0600) == 0);
  CHECK_THAT(open("pipe"), EndsWith("pipe: is not a regular file"));
}

TEST_CASE("a line is split into fields at separators") {
  REQUIRE(split("\t", "a\t b \t\tc") == Strings{"a", "b", "", "c"});
  REQUIRE(split("::", "a::b:c::") == Strings{"a", "b:c", ""});
  REQUIRE(split(" ", "  a   b c  ") == Strings{"a", "b", "c"});
  REQUIRE(split("|", "a|\"b|c\"") == Strings{"a", "\"b", "c\""});
  REQUIRE(split(",", "a") == Strings{"a"});
  REQUIRE(split(",", R"(1, "a, ""b"" " ,"",c"d)") == Strings{"1", "a, \"b\" ", "", "c\"d"});
  REQUIRE(split(";", R"("";"x")") == Strings{"", "x"});
  // Scanning the trailing spaces again for each field would take quadratic time.
  const std::string many = std::string(30'000, ',') + std::string(30'000, ' ');
  REQUIRE(split(",", many).size() == 30'001);
  CHECK_THAT(test::message_of<InputError>([] { split(",", "1,\"ab"); }),
             EndsWith("line 1: has a quote that does not end: 'ab'"));
  CHECK_THAT(test::message_of<InputError>([] { split(",", "1,\"a\"b,2"); }),
             EndsWith("line 1: has 'b' after a quoted field, expected ','"));
}
