#include "train/report/progress.h"

#include <sstream>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::train;

namespace {

// Returns what `body` writes to stderr, caught at the file descriptor.
template <class Body>
std::string said(Body&& body) {
  const test::TemporaryFolder folder;
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  std::FILE* const file = std::fopen(folder.path("said").c_str(), "w");
  ::dup2(::fileno(file), STDERR_FILENO);
  body();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::fclose(file);
  return folder.read("said");
}

int64_t lines_of(int64_t steps, Progress::Clock::duration silence) {
  const std::string text = said([&] {
    set_up_messages(true);
    Progress progress(steps, true, "tokens", silence);
    for (int64_t step = 0; step < steps; ++step) progress.step({.step = step});
  });
  set_up_messages(false);
  return std::ranges::count(text, '\n');
}

}  // namespace

TEST_CASE("in a pipe progress is a line every tenth, and none is silent for longer than it may") {
  CHECK(lines_of(100, std::chrono::hours(1)) == 11);
  CHECK(lines_of(5, std::chrono::hours(1)) == 5);
  CHECK(lines_of(100, std::chrono::seconds(0)) == 100);
}
