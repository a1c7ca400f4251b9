// Tests that emulated NCCL ends a process in which a thread ends within a group of calls.
#include <nccl.h>

#include <string>
#include <thread>

#include "tests/emulated/fault.h"

using namespace emulated_tests;
using Catch::Matchers::ContainsSubstring;

namespace {

/// Starts `starts` groups on a thread, and ends `ends` of them before the thread ends.
Faulted groups(int starts, int ends) {
  return fault_of([&] {
    std::thread([&] {
      for (int i = 0; i < starts; ++i) (void)ncclGroupStart();
      for (int i = 0; i < ends; ++i) (void)ncclGroupEnd();
    }).join();
  });
}

}  // namespace

TEST_CASE("emulated: a thread that ends within a group of NCCL calls ends the process") {
  for (const int starts : {1, 2}) {
    const Faulted left_open = groups(starts, starts - 1);
    CHECK(left_open.by_signal);
    CHECK_THAT(left_open.says, ContainsSubstring("ncclGroupStart without ncclGroupEnd"));
    const Faulted ended = groups(starts, starts);
    CHECK_FALSE(ended.by_signal);
    CHECK(ended.says.empty());
  }
}
