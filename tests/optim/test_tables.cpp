// Tests the code for row-sparse tables that needs only one rank: sets of rows, sorted rows, the
// numbers of rows that a plan expects, and a plan's advice about a large dense table.
#include <algorithm>
#include <cmath>
#include <string>

#include "core/memory.h"
#include "optim/plan/plan.h"
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
    CHECK(slots.add(-1 + (1 << 30)) == -1);  // all 300 slots are taken
    CHECK(slots.slot_of(7919) == 1);
    CHECK(slots.slot_of(-1 + (1 << 30)) == -1);
    CHECK(slots.rows()[1] == 7919);
    slots.clear();
    CHECK(slots.count() == 0);
    CHECK(slots.slot_of(7919) == -1);
  }
}

TEST_CASE("row slots: truncate removes the rows that were added last") {
  RowSlots slots(300);
  for (int32_t i = 0; i < 300; ++i) REQUIRE(slots.add(i * 7919 % 100003) == i);
  slots.truncate(100);
  CHECK(slots.count() == 100);
  for (int32_t i = 0; i < 100; ++i) REQUIRE(slots.add(i * 7919 % 100003) == i);
  CHECK(slots.count() == 100);
  CHECK(slots.add(299 * 7919 % 100003) == 100);
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

TEST_CASE("sorted rows: many, up to the largest row") {
  SortedRows sorted(5000, Device{});
  std::vector<int32_t> rows;
  for (int64_t i = 0; i < 5000; ++i)
    rows.push_back(static_cast<int32_t>(i * 429496729 % 2147483647));
  std::vector<uint8_t> used(rows.size(), 1);
  for (size_t i = 0; i < used.size(); i += 3) used[i] = 0;
  sorted.sort(rows, 7, used);
  CHECK(sorted.count() == 3333);
  CHECK(std::ranges::is_sorted(sorted.rows()));
  const Tensor slots = sorted.device_slots().to_host();
  for (int64_t i = 0; i < sorted.count(); ++i) {
    const int64_t place = slots.data<int32_t>()[i] - 7;
    REQUIRE(place % 3 != 0);
    REQUIRE(rows[static_cast<size_t>(place)] == sorted.rows()[static_cast<size_t>(i)]);
  }
}

TEST_CASE("expected rows: uniform and Zipf, against sums by hand") {
  // 3 draws miss a given row with probability (1/2)^3, so 2 (1 - 1/8) rows are expected.
  CHECK(expected_rows(2, 3, {}) == Approx(1.75));
  // Zipf with exponent 1 draws the 2 rows with probabilities 2/3 and 1/3.
  CHECK(expected_rows(2, 2, {.zipf = 1}) == Approx((1 - 1.0 / 9) + (1 - 4.0 / 9)));
  CHECK(expected_rows(1, 5, {.zipf = 1}) == 1);
  CHECK(expected_rows(1000, 1, {.zipf = 1.1}) == Approx(1));
  CHECK(expected_rows(1'000'000, 4096, {}) == Approx(4087.6).epsilon(1e-3));
}

TEST_CASE("expected rows of a large table equal the sum over its rows, and are soon known") {
  const double zipf = GENERATE(0.1, 1.0, 1.05, 3.0, 10.0);
  constexpr int64_t rows = 200'000;
  for (const int64_t lookups : {1, 4096, 1'000'000'000}) {
    double weights = 0;
    for (int64_t i = 1; i <= rows; ++i) weights += std::pow(double(i), -zipf);
    double expected = 0;
    for (int64_t i = 1; i <= rows; ++i) {
      const double p = std::pow(double(i), -zipf) / weights;
      expected += -std::expm1(double(lookups) * std::log1p(-p));
    }
    CHECK(expected_rows(rows, lookups, {.zipf = zipf}) == Approx(expected).epsilon(1e-11));
  }
  // A sum over all 10^12 rows would take hours, so expected_rows must not compute it.
  CHECK(expected_rows(1'000'000'000'000, 1, {.zipf = zipf}) == Approx(1));
}

TEST_CASE("a dense table that dominates a model: advice, and the cost of stage 3") {
  PlanInput input{.parameters = {{.name = "users", .elements = 1000 * 64, .lookups = 1},
                                 {.name = "layer", .elements = 64 * 64}},
                  .ranks = 4,
                  .stage = 3,
                  .batch = {.global = 32, .micro = 8}};
  CHECK(dense_table_advice(input).find("users is dense and has 94 %") == 0);
  CHECK(dense_table_advice(input).find("stage 3 gathers 0.3 MB") != std::string::npos);
  input.parameters[0].trainable = false;
  CHECK(dense_table_advice(input).empty());
  input.parameters[0].trainable = true;
  // Stage 3 may need more memory than stage 2. The difference is at most the gathered table.
  for (int64_t rank = 0; rank < 4; ++rank) {
    PlanInput second = input;
    second.stage = 2;
    CHECK(plan(input, rank).memory() <= plan(second, rank).memory() + 4 * 1000 * 64);
  }
  input.parameters[0].rows = 1000;
  input.parameters[0].distinct = 8;
  CHECK(dense_table_advice(input).empty());
  // Rank 0 stores its own 252 rows of the table, and the 8 rows of a micro-batch. It also stores
  // the gathered parameters of the layer (64 x 64), and its own shard of them (1024 elements).
  CHECK(plan(input, 0).parameters == 4 * (64 * (252 + 8) + 64 * 64 + 1024));
  input.parameters[0] = {.name = "users", .elements = 1000 * 64, .shared = true, .lookups = 1};
  CHECK(dense_table_advice(input).empty());
}

TEST_CASE("plan: a row-sparse table with an impossible number of rows is refused") {
  const auto plan_of = [](int64_t rows, int64_t distinct) {
    return plan(
        {.parameters =
             {{.name = "t", .elements = 1000, .rows = rows, .distinct = distinct, .lookups = 1}}},
        0);
  };
  CHECK_NOTHROW(plan_of(100, 100));
  const auto refused = Catch::Matchers::ContainsSubstring("plan: row-sparse table 't' has");
  CHECK_THROWS_WITH(plan_of(0, 5), refused);
  CHECK_THROWS_WITH(plan_of(-100, 5), refused);
  CHECK_THROWS_WITH(plan_of(100, 101), refused);
  CHECK_THROWS_WITH(plan_of(300, 5), refused);  // 1000 is not a multiple of 300
}

TEST_CASE("expected counts of rows are close to those of a step") {
  const PlanInput input{
      .parameters = {{.name = "t", .elements = 64000, .rows = 1000, .distinct = 100, .lookups = 1}},
      .ranks = 4,
      .stage = 3,
      .batch = {.global = 800, .micro = 100}};
  const RowCounts counts = expected_counts(input, input.parameters[0], 1, 100, {});
  const double distinct = expected_rows(1000, 100, {});
  CHECK(counts.looked_up == std::llround(2 * distinct));
  CHECK(std::abs(double(counts.sent) - 2 * distinct * 0.75) < 5);  // rank 1 owns 252 of 1000 rows
  CHECK(counts.asked == counts.sent);
  CHECK(std::abs(double(counts.served) - double(counts.asked)) < 5);
  CHECK(std::abs(double(counts.touched) - expected_rows(1000, 800, {}) / 4) < 5);
  const auto traffic = table_traffic(input, input.parameters[0], 1, counts);
  CHECK(traffic[static_cast<size_t>(dist::Traffic::gradients)] == counts.sent * 256);
  CHECK(traffic[static_cast<size_t>(dist::Traffic::rows)] == (counts.sent + counts.asked) * 4);

  // Four ranks share three micro-batches in one micro-step, so rank 3 repeats one of them. Its
  // `asked` includes rows of the repeated micro-batch, but its `looked_up` and `sent` do not.
  PlanInput fewer = input;
  fewer.batch.global = 300;
  const RowCounts idle = expected_counts(fewer, fewer.parameters[0], 3, 100, {});
  CHECK(idle.looked_up == 0);
  CHECK(idle.sent == 0);
  CHECK(idle.asked > 0);

  // For a frozen table, only the fetches of stage 3 are counted.
  PlanInput frozen = input;
  frozen.parameters[0].trainable = false;
  CHECK(expected_counts(frozen, frozen.parameters[0], 1, 100, {}) ==
        RowCounts{.asked = counts.asked, .served = counts.served});
  frozen.stage = 2;
  CHECK(expected_counts(frozen, frozen.parameters[0], 1, 100, {}) == RowCounts{});
}

}  // namespace
}  // namespace tessera::optim
