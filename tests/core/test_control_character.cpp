#include "core/text/control_character.h"

#include "tests/support/catch.h"

using namespace tessera;

TEST_CASE("text for a terminal keeps all characters except control characters") {
  CHECK(with_escaped_controls("sch\xc3\xb6n \"a\" \\ \xff") == "sch\xc3\xb6n \"a\" \\ \xff");
  CHECK(with_escaped_controls("a\n\x1b[1m\x7f") == "a\\u000a\\u001b[1m\\u007f");
  CHECK(with_escaped_controls("\u009b1m \xc2\xa0 \xc2") == "\\u009b1m \xc2\xa0 \xc2");
}
