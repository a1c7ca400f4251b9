#include "tests/hostile/text_mutation.h"

#include <algorithm>
#include <cctype>
#include <utility>

#include "core/error.h"

namespace tessera::hostile {
namespace {

struct Piece {
  size_t begin = 0;
  size_t bytes = 0;
};

bool is_number(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' || c == '+';
}

std::vector<Piece> numbers_in(const std::string& text) {
  std::vector<Piece> found;
  for (size_t begin = 0; begin < text.size();) {
    size_t end = begin;
    while (end < text.size() && is_number(text[end])) ++end;
    if (end > begin) found.push_back({begin, end - begin});
    begin = end + 1;
  }
  return found;
}

// Returns the strings of a text, with their quotes.
std::vector<Piece> strings_in(const std::string& text) {
  std::vector<Piece> found;
  for (size_t begin = text.find('"'); begin != std::string::npos;) {
    const size_t end = text.find('"', begin + 1);
    if (end == std::string::npos) break;
    found.push_back({begin, end + 1 - begin});
    begin = text.find('"', end + 1);
  }
  return found;
}

// Returns the members of a JSON text ("key": value, up to the next comma or closing bracket), or
// the lines of another text.
std::vector<Piece> members_in(const std::string& text) {
  std::vector<Piece> found;
  const bool json = text.find('{') != std::string::npos;
  size_t begin = json ? text.find('"') : 0;
  while (begin != std::string::npos && begin < text.size()) {
    const size_t end = std::min(text.find_first_of(json ? ",}]" : "\n", begin), text.size());
    if (end > begin) found.push_back({begin, end - begin});
    begin = json ? text.find('"', end) : end + 1;
  }
  return found;
}

Piece pick(const std::vector<Piece>& pieces, Random& random) {
  return pieces[random.below(pieces.size())];
}

std::string other_number(std::string& text, Random& random) {
  const std::vector<Piece> numbers = numbers_in(text);
  if (numbers.empty()) return "JSON: it has no number";
  const auto [begin, bytes] = pick(numbers, random);
  const auto value = random.pick<const char*>({"0",
                                               "-1",
                                               "1",
                                               "2",
                                               "1.5",
                                               "255",
                                               "256",
                                               "65536",
                                               "1000000",
                                               "2147483647",
                                               "2147483648",
                                               "4294967295",
                                               "4294967296",
                                               "4611686018427387904",
                                               "9223372036854775807",
                                               "9223372036854775808",
                                               "18446744073709551615",
                                               "18446744073709551616",
                                               "1e9",
                                               "1e19",
                                               "1e999",
                                               "-1e999",
                                               "1e-999",
                                               "NaN",
                                               "Infinity",
                                               "-0",
                                               "-0.0",
                                               "01",
                                               "0x10",
                                               "+1",
                                               "1.",
                                               "",
                                               "true",
                                               "null",
                                               "\"7\"",
                                               "[]",
                                               "{}",
                                               "1 2"});
  text.replace(begin, bytes, value);
  return fmt::format("JSON: the number at {} becomes {}", begin, value);
}

std::string other_string(std::string& text, Random& random) {
  const std::vector<Piece> strings = strings_in(text);
  if (strings.empty()) return "JSON: it has no text in quotes";
  const auto [begin, bytes] = pick(strings, random);
  const std::string value = random.pick<std::string>(
      {"\"\"", "\"\xff\xfe\"", "\"\\ud800\"", "\"\\u0000\"", std::string("\"\0\"", 3), "\"\\x\"",
       "null", "3", "[]", "{}", "true", "\"../../etc\"", "\"F64\"", "\"BF16\"", "\"I64\"",
       "\"shape\"", "\"__metadata__\"", fmt::format("\"{}\"", std::string(100'000, 'a'))});
  text.replace(begin, bytes, value);
  return fmt::format("JSON: the text at {} becomes {} bytes", begin, value.size());
}

std::string twice(std::string& text, Random& random) {
  const std::vector<Piece> members = members_in(text);
  if (members.empty()) return "JSON: it has no members";
  const Piece from = pick(members, random);
  const std::string member = text.substr(from.begin, from.bytes);
  const bool json = text.find('{') != std::string::npos;
  text.insert(from.begin, member + (json ? "," : "\n"));
  return fmt::format("JSON: a member twice, at {}", from.begin);
}

std::string swapped(std::string& text, Random& random) {
  const std::vector<Piece> members = members_in(text);
  if (members.size() < 2) return "JSON: it has fewer than two members";
  Piece a = pick(members, random);
  Piece b = pick(members, random);
  if (a.begin > b.begin) std::swap(a, b);
  if (a.begin + a.bytes > b.begin) return "JSON: members stay where they are";
  const std::string first = text.substr(a.begin, a.bytes);
  const std::string second = text.substr(b.begin, b.bytes);
  text.replace(b.begin, b.bytes, first);
  text.replace(a.begin, a.bytes, second);
  return fmt::format("JSON: members at {} and {} are swapped", a.begin, b.begin);
}

std::string without(std::string& text, Random& random) {
  const std::vector<Piece> members = members_in(text);
  if (members.empty()) return "JSON: it has no members";
  const auto [begin, bytes] = pick(members, random);
  const size_t comma = begin + bytes < text.size() && text[begin + bytes] == ',' ? 1 : 0;
  text.erase(begin, bytes + comma);
  return fmt::format("JSON: the member at {} is gone", begin);
}

std::string nested(std::string& text, Random& random) {
  const size_t depth = random.pick<size_t>({3, 8, 100, 10'000, 200'000});
  const bool lists = random.one_in(2);
  const bool closed = !random.one_in(4);
  std::string piece;
  for (size_t i = 0; i < depth; ++i) piece += lists ? "[" : "{\"a\":";
  piece += "1";
  for (size_t i = 0; closed && i < depth; ++i) piece += lists ? "]" : "}";
  const std::vector<Piece> numbers = numbers_in(text);
  if (numbers.empty() || random.one_in(8)) {
    text = piece;
  } else {
    const auto [begin, bytes] = pick(numbers, random);
    text.replace(begin, bytes, piece);
  }
  return fmt::format("JSON: nested {} deep", depth);
}

std::string other_character(std::string& text, Random& random) {
  const size_t at = random.below(text.size());
  const char c = random.pick(
      {'{', '}', '[', ']', ',', ':', '"', '\\', '=', '#', '\n', '\0', '\xff', ' ', '-', 'e'});
  const bool inserts = random.one_in(2) || text.empty();
  text.replace(at, inserts ? 0 : 1, 1, c);
  return fmt::format("JSON: character {} {} at {}", static_cast<int>(c),
                     inserts ? "more" : "in place of another", at);
}

}  // namespace

std::string mutate_text(std::string& text, Random& random) {
  switch (random.below(9)) {
    case 0:
      return other_string(text, random);
    case 1:
      return twice(text, random);
    case 2:
      return swapped(text, random);
    case 3:
      return without(text, random);
    case 4:
      return nested(text, random);
    case 5:
      return other_character(text, random);
    default:
      return other_number(text, random);
  }
}

}  // namespace tessera::hostile
