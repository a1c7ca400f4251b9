#include "core/text/input_file.h"

#include <sys/stat.h>

#include <filesystem>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using Catch::Matchers::ContainsSubstring;
using test::message_of;

TEST_CASE("bytes of a file are read at any offset") {
  const test::TemporaryFolder folder;
  const InputFile file(folder.file("a", "0123456789"));
  CHECK(file.size() == 10);
  std::string text(4, ' ');
  file.read_at(6, text.data(), text.size());
  CHECK(text == "6789");
  file.read_at(10, text.data(), 0);
}

TEST_CASE("files that are not regular are refused, and pipes without waiting") {
  const test::TemporaryFolder folder;
  const std::string pipe = folder.path("pipe");
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  for (const std::string& path : {pipe, folder.path(""), std::string("/dev/zero")}) {
    CHECK_THAT(message_of<InputError>([&] { InputFile{path}; }),
               ContainsSubstring(path + ": is not a regular file"));
  }
  CHECK_THAT(message_of<InputError>([&] { InputFile{folder.path("none")}; }),
             ContainsSubstring("none: cannot be opened: No such file"));
}

TEST_CASE("a file that shrinks while it is open is an error that names the offset") {
  const test::TemporaryFolder folder;
  const InputFile file(folder.file("a", std::string(10000, 'a')));
  std::filesystem::resize_file(file.path(), 5000);
  std::string text(3000, ' ');
  file.read_at(0, text.data(), text.size());
  CHECK_THAT(message_of<Error>([&] { file.read_at(3000, text.data(), text.size()); }),
             ContainsSubstring("a: has become shorter since it was opened: there is no byte 5000, "
                               "of 10000 that it had"));
}
