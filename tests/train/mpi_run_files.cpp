// Tests that all ranks learn of an output that could not be made on one of them.
#include <string>

#include "core/error.h"
#include "tests/support/catch.h"
#include "tests/support/training.h"
#include "train/run_files.h"

namespace tessera::test {
namespace {

// Returns the failure of an output that only the ranks from `first` on fail to make.
std::string failure_from(int first) {
  const dist::World world = job_world();
  std::string failure;
  train::attempt_together(failure, world, [&] {
    if (world.rank >= first) fail("no memory");
  });
  return failure;
}

TEST_CASE("all ranks get the failure of any rank") {
  const int ranks = job_world().size;
  CHECK(failure_from(ranks).empty());
  CHECK(failure_from(0) == "no memory");
  for (int first = 1; first < ranks; ++first) {
    CHECK(failure_from(first) == fmt::format("no memory (rank {})", first));
  }
}

}  // namespace
}  // namespace tessera::test
