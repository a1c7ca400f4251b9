// Tests which error a program ends with if standard output is lost.
#include "apps/console/console.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::apps;
using Catch::Matchers::ContainsSubstring;

TEST_CASE("where standard output is lost, an error about a file keeps its own reason") {
  std::fflush(stdout);
  const int before = ::dup(STDOUT_FILENO);
  const int full = ::open("/dev/full", O_WRONLY);
  ::dup2(full, STDOUT_FILENO);
  std::fputs("\n", stdout);
  std::fflush(stdout);
  const bool is_lost = std::ferror(stdout) != 0;
  const std::string of_file = test::message_of<std::filesystem::filesystem_error>([] {
    run_and_check([]() -> int {
      const auto denied = std::make_error_code(std::errc::permission_denied);
      throw std::filesystem::filesystem_error("cannot rename", "a.txt", denied);
    });
  });
  const std::string of_output = test::message_of<Error>([] {
    run_and_check([]() -> int {
      throw std::system_error(std::make_error_code(std::errc::no_space_on_device), "cannot write");
    });
  });
  ::dup2(before, STDOUT_FILENO);
  ::close(before);
  ::close(full);
  std::clearerr(stdout);
  CHECK(is_lost);
  CHECK_THAT(of_file, ContainsSubstring("cannot rename") && ContainsSubstring("a.txt"));
  CHECK(of_output == "standard output: writing failed: No space left on device");
}
