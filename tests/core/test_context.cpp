// Tests how loops are split over threads, and the counting of workspace.
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "core/context.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

namespace {

using Ranges = std::map<int64_t, int64_t>;  // begin -> end

Ranges split(int64_t items, int64_t cost) {
  Ranges ranges;
  std::mutex mutex;
  parallel_ranges(items, cost, [&](int64_t begin, int64_t end) {
    const std::scoped_lock lock(mutex);
    ranges[begin] = end;
  });
  return ranges;
}

}  // namespace

TEST_CASE("ranges cover every item once, for any number of threads") {
  const ThreadCountRestorer restorer;
  constexpr int64_t expensive = int64_t{1} << 20;
  for (const int threads : {1, 2, 3, 5}) {
    set_thread_count(threads);
    CHECK(thread_count() == threads);
    for (const int64_t items : {0, 1, 2, 3, 4, 7, 100}) {
      const Ranges ranges = split(items, expensive);
      CHECK(ranges.size() <= static_cast<size_t>(threads));
      int64_t at = 0;
      for (const auto& [begin, end] : ranges) {
        CHECK(begin == at);
        CHECK(begin < end);
        at = end;
      }
      CHECK(at == items);
      CHECK(split(items, expensive) == ranges);
    }
  }
}

TEST_CASE("small loops stay on the calling thread") {
  const ThreadCountRestorer restorer;
  set_thread_count(4);
  CHECK_FALSE(worth_a_team(100, 1));
  CHECK(split(100, 1) == Ranges{{0, 100}});
  std::thread::id id;
  parallel_ranges(100, 1, [&id](int64_t, int64_t) { id = std::this_thread::get_id(); });
  CHECK(id == std::this_thread::get_id());
  CHECK(worth_a_team(int64_t{1} << 20, 1));
}

TEST_CASE("a loop is worth a team from 32768 operations on, however large the product is") {
  for (const int64_t cost : {1, 3, 128, 32767, 32768, 40000}) {
    const int64_t enough = (32768 + cost - 1) / cost;
    CHECK(worth_a_team(enough, cost));
    CHECK_FALSE(worth_a_team(enough - 1, cost));
  }
  CHECK_FALSE(worth_a_team(100, 0));
  CHECK(worth_a_team(int64_t{1} << 40, int64_t{1} << 40));  // the product is a multiple of 2^64
}

TEST_CASE("a parallel loop inside a parallel loop covers its whole range") {
  const ThreadCountRestorer restorer;
  set_thread_count(2);
  std::atomic<int64_t> total{0};
  parallel_ranges(2, 1 << 20, [&](int64_t, int64_t) {
    parallel_ranges(10, 1 << 20, [&](int64_t begin, int64_t end) { total += end - begin; });
  });
  CHECK(total == 20);
}

TEST_CASE("ThreadCountScope changes the thread count of its own thread only", "[threads]") {
  const ThreadCountRestorer restorer;
  set_thread_count(3);
  {
    const ThreadCountScope one(1);
    CHECK(thread_count() == 1);
    {
      const ThreadCountScope two(2);
      CHECK(thread_count() == 2);
    }
    CHECK(thread_count() == 1);
    int elsewhere = 0;
    std::thread([&elsewhere] { elsewhere = thread_count(); }).join();
    CHECK(elsewhere == 3);
  }
  CHECK(thread_count() == 3);
  CHECK_THROWS_AS(set_thread_count(0), Error);
  CHECK_THROWS_AS(ThreadCountScope(0), Error);
  CHECK(thread_count() == 3);
}

TEST_CASE("an exception in a parallel loop's body reaches the caller") {
  const ThreadCountRestorer restorer;
  set_thread_count(3);
  const auto throws = [](int64_t, int64_t end) { TESSERA_CHECK(end < 1000000, "body: no"); };
  CHECK_THROWS_WITH(parallel_ranges(1000000, 100, throws), "body: no");
  set_thread_count(1);
  CHECK_THROWS_WITH(parallel_ranges(1000000, 100, throws), "body: no");
}

TEST_CASE("workspace is counted as workspace, only while it is allocated") {
  const Context context = test_context();
  const int64_t before = memory_ledger().current(Category::workspace);
  {
    const Tensor scratch = context.workspace({3, 4}, DType::i32);
    CHECK(scratch.dtype() == DType::i32);
    CHECK(memory_ledger().current(Category::workspace) == before + 48);
  }
  CHECK(memory_ledger().current(Category::workspace) == before);
}
