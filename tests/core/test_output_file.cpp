#include "core/text/output_file.h"

#include <sys/stat.h>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

TEST_CASE("a file appears as a whole, with commit") {
  const test::TemporaryFolder folder;
  OutputFile file(folder.path("a"));
  file.write("one ");
  file.write("two");
  REQUIRE_FALSE(std::filesystem::exists(folder.path("a")));
  file.commit();
  REQUIRE(folder.read("a") == "one two");
  REQUIRE(folder.entries() == 1);
}

TEST_CASE("without commit nothing remains, and what was there stays") {
  const test::TemporaryFolder folder;
  folder.file("a", "before");
  {
    OutputFile file(folder.path("a"));
    file.write("after");
  }
  REQUIRE(folder.read("a") == "before");
  check_writable(folder.path("b"));
  REQUIRE(folder.entries() == 1);
}

TEST_CASE("a link is followed, not replaced") {
  const test::TemporaryFolder folder;
  folder.file("target", "before");
  std::filesystem::create_symlink(folder.path("target"), folder.path("link"));
  OutputFile file(folder.path("link"));
  file.write("after");
  file.commit();
  REQUIRE(std::filesystem::is_symlink(folder.path("link")));
  REQUIRE(folder.read("target") == "after");
}

TEST_CASE("what cannot be written is refused when it is opened") {
  const test::TemporaryFolder folder;
  REQUIRE_THAT(message_of<InputError>([&] { check_writable(folder.path("no/such")); }),
               ContainsSubstring("no/such: cannot be written: No such file"));
  REQUIRE_THAT(message_of<InputError>([&] { check_writable(folder.path("")); }),
               ContainsSubstring("not a regular file"));
  REQUIRE_THAT(message_of<InputError>([&] { check_writable("/dev/null"); }),
               ContainsSubstring("not a regular file"));
}

TEST_CASE("pieces are written at their places, in any order") {
  const test::TemporaryFolder folder;
  OutputFile file(folder.path("a"));
  file.write("head ");
  file.write_at(9, "tail", 4);
  file.write_at(5, "mid ", 4);
  file.write_at(0, "H", 1);
  REQUIRE_FALSE(std::filesystem::exists(folder.path("a")));
  file.commit();
  REQUIRE(folder.read("a") == "Head mid tail");
}
