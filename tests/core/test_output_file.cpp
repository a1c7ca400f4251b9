#include "core/text/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/file_size_limit.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using Catch::Matchers::EndsWith;
using test::message_of;

TEST_CASE("a file appears complete, at commit") {
  const test::TemporaryFolder folder;
  OutputFile file(folder.path("a"));
  file.write("one ");
  file.write("two");
  REQUIRE_FALSE(std::filesystem::exists(folder.path("a")));
  file.commit();
  REQUIRE(folder.read("a") == "one two");
  REQUIRE(folder.entries() == 1);
}

TEST_CASE("a file keeps its temporary name after sync, and can still be written") {
  const test::TemporaryFolder folder;
  OutputFile file(folder.path("a"));
  file.write("one ");
  file.sync();
  REQUIRE_FALSE(std::filesystem::exists(folder.path("a")));
  file.write("two");
  file.commit();
  REQUIRE(folder.read("a") == "one two");
}

TEST_CASE("without commit nothing is left behind, and an existing file stays") {
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

TEST_CASE("a file that replaces another one gets its permissions") {
  const test::TemporaryFolder folder;
  folder.file("a", "before");
  REQUIRE(::chmod(folder.path("a").c_str(), 0640) == 0);
  OutputFile file(folder.path("a"));
  file.write("after");
  file.commit();
  struct stat status {};
  REQUIRE(::stat(folder.path("a").c_str(), &status) == 0);
  CHECK((status.st_mode & 0777) == 0640);
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

TEST_CASE("a path that cannot be written is refused when it is opened") {
  const test::TemporaryFolder folder;
  REQUIRE_THAT(message_of<InputError>([&] { check_writable(folder.path("no/such")); }),
               EndsWith("no/such: cannot be written: the folder " + folder.path("no") +
                        " does not exist"));
  REQUIRE_THAT(message_of<InputError>([&] { check_writable(folder.path("")); }),
               ContainsSubstring("not a regular file"));
  REQUIRE_THAT(message_of<InputError>([&] { check_writable("/dev/null"); }),
               ContainsSubstring("not a regular file"));
}

TEST_CASE("pieces are written at their offsets, in any order") {
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

TEST_CASE("writing beyond the file size limit is an error, and leaves nothing behind") {
  const test::TemporaryFolder folder;
  {
    const test::FileSizeLimit limit(1000);
    CHECK_THAT(message_of<Error>([&] {
                 OutputFile file(folder.path("a"));
                 file.write(std::string(2000, 'a'));
               }),
               ContainsSubstring("a: writing failed: File too large"));
  }
  CHECK(folder.entries() == 0);
}

TEST_CASE("a file of which a write has failed does not appear, even if it is written further") {
  const test::TemporaryFolder folder;
  folder.file("a", "before");
  {
    OutputFile file(folder.path("a"));
    file.sync();
    const std::string bytes(2000, 'a');
    {
      const test::FileSizeLimit limit(1000);
      CHECK_THROWS_AS(file.write_at(1000, bytes.data(), bytes.size()), Error);
    }
    file.write(bytes);
    for (const auto& complete : {&OutputFile::sync, &OutputFile::commit}) {
      CHECK_THAT(message_of<Error>([&] { (file.*complete)(); }),
                 EndsWith("a: is not completed, because writing it has failed before"));
    }
  }
  CHECK(folder.read("a") == "before");
  CHECK(folder.entries() == 1);
}

TEST_CASE("writing a file again removes a killed process's temporary file, and no other") {
  const test::TemporaryFolder folder;
  std::array<char, 256> host{};
  REQUIRE(::gethostname(host.data(), host.size() - 1) == 0);
  const std::string begin = std::string("a.") + host.data();
  folder.file(begin + ".123.tmp", "of a process that is no longer there");
  const std::string own = folder.file(fmt::format("{}.{}.tmp", begin, ::getpid()),
                                      "of one that had this process's number");
  // These files must stay: a temporary file that is locked, temporary files of other hosts, files
  // with other names, and a pipe, which must not be opened. Only `a` itself is replaced.
  const int written = ::open(folder.file(begin + ".124.tmp", "").c_str(), O_WRONLY);
  REQUIRE(::flock(written, LOCK_EX) == 0);
  for (const char* name : {"a.another-host.123.tmp", "ab.123.tmp", "a.123.tmp", "a"}) {
    folder.file(name, "");
  }
  folder.file(begin + ".12x.tmp", "");
  folder.file(begin + "..tmp", "");
  REQUIRE(::mkfifo(folder.path(begin + ".125.tmp").c_str(), 0600) == 0);
  {
    OutputFile file(folder.path("a"));
    CHECK_FALSE(std::filesystem::exists(folder.path(begin + ".123.tmp")));
    CHECK(std::filesystem::file_size(own) == 0);
    // Two writers of one file must not share a temporary file.
    CHECK_THAT(message_of<InputError>([&] { OutputFile{folder.path("a")}; }),
               ContainsSubstring("is in use"));
    file.write("new");
    file.commit();
  }
  CHECK(folder.read("a") == "new");
  CHECK(folder.entries() == 8);
  ::close(written);
  check_writable(folder.path("a"));
  CHECK(folder.entries() == 7);
}
