// Tests what row-sparse tables are made of on one rank: sets of rows, sorted rows, and the expected
// numbers of a plan.
#include <cmath>

#include "core/memory.h"
#include "optim/plan/plan_tables.h"
#include "optim/tables/row_slots.h"
#include "optim/tables/sorted_rows.h"
#include "tests/support/catch.h"

namespace tessera::optim {
namespace {

TEST_CASE("row slots: rows are numbered in order of addition, and found again") {
  const int64_t before = memory_ledger(Device{}).current(Category::communication);
  RowSlots slots(300);
  CHECK(memory_ledger(Device{}).current(Category::communication) - before == RowSlots::bytes(300));
  for (int round = 0; round < 3; ++round) {
    for (int32_t i = 0; i < 300; ++i) REQUIRE(slots.add(i * 7919 % 100003) == i);
    for (int32_t i = 299; i >= 0; --i) REQUIRE(slots.add(i * 7919 % 100003) == i);
    CHECK(slots.count() == 300);
    CHECK(slots.add(-1 + (1 << 30)) == -1);  // full
    CHECK(slots.rows()[1] == 7919);
    slots.clear();
    CHECK(slots.count() == 0);
  }
}

TEST_CASE("sorted rows: ascending, with their slots and owners") {
  SortedRows sorted(5, Device{});
  const std::vector<int32_t> rows{9, 2, 700, 4, 255};
  sorted.sort(rows, 10);
  CHECK(std::vector<int32_t>(sorted.rows().begin(), sorted.rows().end()) ==
        std::vector<int32_t>{2, 4, 9, 255, 700});
  const Tensor slots = sorted.device_slots().to_host();
  CHECK(std::vector<int32_t>(slots.data<int32_t>(), slots.data<int32_t>() + 5) ==
        std::vector<int32_t>{11, 13, 10, 14, 12});
  const dist::RowLayout layout(701, 1, 3, 256);
  std::vector<int64_t> counts(3);
  sorted.count_by_owner(layout, counts);
  CHECK(counts == std::vector<int64_t>{4, 0, 1});
}

TEST_CASE("expected rows: uniform and Zipf, against sums by hand") {
  // 2 rows, 3 draws: 2 (1 - 1/8).
  CHECK(expected_rows(2, 3, {}) == Approx(1.75));
  // Zipf with exponent 1 over 2 rows: probabilities 2/3 and 1/3.
  CHECK(expected_rows(2, 2, {.zipf = 1}) == Approx((1 - 1.0 / 9) + (1 - 4.0 / 9)));
  CHECK(expected_rows(1, 5, {.zipf = 1}) == 1);
  CHECK(expected_rows(1000, 1, {.zipf = 1.1}) == Approx(1));
  CHECK(expected_rows(1'000'000, 4096, {}) == Approx(4087.6).epsilon(1e-3));
}

}  // namespace
}  // namespace tessera::optim
