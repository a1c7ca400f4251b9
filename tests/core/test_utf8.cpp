#include "core/text/utf8.h"

#include <string>

#include "tests/support/catch.h"

using namespace tessera;
using namespace std::string_literals;

TEST_CASE("is_utf8 accepts valid UTF-8 only") {
  for (const auto& text : {""s, "a\0"s, "\xC3\xA9"s, "\xE2\x82\xAC"s, "\xF0\x9F\x98\x80"s,
                           "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF"s}) {
    CHECK(is_utf8(text));
  }
  // These texts are not UTF-8: lone or truncated sequences, sequences longer than needed, a
  // surrogate, values above 10FFFF.
  for (const char* text :
       {"\x80", "\xC3", "\xC0\x80", "\xC1\xBF", "\xE0\x9F\xBF", "\xE2\x82", "\xED\xA0\x80",
        "\xF0\x8F\xBF\xBF", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xC3\x41", "\xE2\x82\x41"}) {
    CHECK_FALSE(is_utf8(text));
  }
}
