// Tests kernels for listed rows of a row-sparse table: updates of these rows, and sums of the
// squares of their gradients. The results must have the same bits as those of the kernels for a
// whole table. Rows that are not listed must not change. Compares Adagrad and row-wise Adagrad with
// formulas in float64. Also tests fold_rows, which adds rows to sums.
#include <cmath>

#include "optim/kernels/rows.h"
#include "optim/kernels/square_sums.h"
#include "optim/kernels/update.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/step_scalars.h"

using namespace tessera;
using namespace tessera::test;

namespace {

constexpr int64_t row_count = 37;

Tensor list_of(const std::vector<int32_t>& values) {
  return Tensor::from({static_cast<int64_t>(values.size())}, values);
}

std::vector<float> values_of(const Tensor& x) {
  const Tensor here = x.to_host();
  return {here.data<float>(), here.data<float>() + here.elements()};
}

// A table's values `p`, and two tensors `a` and `b` of its optimizer state.
struct Table {
  explicit Table(int64_t columns)
      : width(columns),
        p(random_tensor({row_count, columns}, 1)),
        a(random_tensor({row_count, columns}, 2)),
        b(random_tensor({row_count, columns}, 3)) {
    for (const Tensor& state : {a, b}) {  // second moments and sums of squares are not negative
      for (float& x : state.values<float>()) x = std::abs(x);
    }
  }
  int64_t width;
  Tensor p, a, b;
};

const std::vector<int32_t> touched{0, 3, 4, 17, 36};
const std::vector<int32_t> slots{2, 0, 4, -1, 1};

RowUpdate row_update(const Table& table, std::span<const Tensor> state, const Tensor& gradients) {
  return {.parameters = table.p,
          .state = state,
          .gradients = gradients,
          .rows = list_of(touched),
          .slots = list_of(slots),
          .count = static_cast<int64_t>(touched.size())};
}

// Returns the gradient of all rows. It is zero for rows that are not touched, and for touched rows
// without a gradient (slot -1).
Tensor whole_gradient(const Tensor& gradients, int64_t width) {
  const Tensor whole = Tensor::zeros({row_count, width});
  for (size_t i = 0; i < touched.size(); ++i) {
    if (slots[i] < 0) continue;
    for (int64_t c = 0; c < width; ++c) {
      whole.values<float>()[static_cast<size_t>(touched[i] * width + c)] =
          gradients.values<float>()[static_cast<size_t>(slots[i] * width + c)];
    }
  }
  return whole;
}

}  // namespace

TEST_CASE("an update of rows has the bits of an update of the range", "[rows]") {
  const int64_t width = GENERATE(1, 8, 20, 256, 300);
  const UpdateHyper hyper{.learning_rate = 1e-2f,
                          .beta1 = 0.9f,
                          .beta2 = 0.95f,
                          .epsilon = 1e-8f,
                          .weight_decay = 0.1f,
                          .bias_correction1 = 0.3f,
                          .bias_correction2 = 0.2f,
                          .gradient_scale = 0.5f};
  const Tensor gradients = random_tensor({5, width}, 4);
  const Tensor whole = whole_gradient(gradients, width);
  const std::vector<UpdateSegment> segments{{0, row_count * width, 0}};
  const std::vector<UpdateHyper> groups{hyper};
  const auto check = [&](const Table& rows, const Table& ranges) {
    const Table before(width);
    for (const auto& [got, expected, old] :
         {std::tuple{rows.p, ranges.p, before.p}, std::tuple{rows.a, ranges.a, before.a},
          std::tuple{rows.b, ranges.b, before.b}}) {
      const auto here = values_of(got);
      const auto there = values_of(expected);
      const auto first = values_of(old);
      for (int64_t row = 0; row < row_count; ++row) {
        const bool is_touched = std::ranges::count(touched, row) > 0;
        for (int64_t c = 0; c < width; ++c) {
          const auto i = static_cast<size_t>(row * width + c);
          if (here[i] != (is_touched ? there[i] : first[i])) {
            CAPTURE(row, c);
            REQUIRE(here[i] == (is_touched ? there[i] : first[i]));
          }
        }
      }
    }
  };
  SECTION("adam") {
    const Table rows(width), ranges(width);
    kernels::adam_update_rows(test_context(),
                              row_update(rows, std::array{rows.a, rows.b}, gradients), hyper);
    kernels::adam_update(test_context(), ranges.p, ranges.a, ranges.b, whole, std::span(segments),
                         std::span(groups));
    check(rows, ranges);
  }
  SECTION("sgd") {
    const Table rows(width), ranges(width);
    kernels::sgd_update_rows(test_context(), row_update(rows, std::array{rows.a}, gradients),
                             hyper);
    kernels::sgd_update(test_context(), ranges.p, ranges.a, whole, std::span(segments),
                        std::span(groups));
    check(rows, ranges);
  }
  SECTION("adagrad") {
    const Table rows(width), ranges(width);
    kernels::adagrad_update_rows(test_context(), row_update(rows, std::array{rows.a}, gradients),
                                 hyper);
    kernels::adagrad_update(test_context(), ranges.p, ranges.a, whole, std::span(segments),
                            std::span(groups));
    check(rows, ranges);
  }
}

TEST_CASE("adagrad_update and its row-wise form against float64", "[rows]") {
  const int64_t width = GENERATE(1, 8, 300);
  const UpdateHyper hyper{
      .learning_rate = 1e-2f, .epsilon = 1e-10f, .weight_decay = 0.1f, .gradient_scale = 0.5f};
  const Tensor gradients = random_tensor({row_count, width}, 4);
  const Table table(width);
  const auto p = doubles(table.p);
  const auto v = doubles(table.a);
  const auto g = doubles(gradients);
  const auto gradient = [&](size_t i) { return g[i] * 0.5 + double{0.1f} * p[i]; };
  SECTION("ranges") {
    const std::vector<UpdateSegment> segments{{0, row_count * width, 0}};
    const std::vector<UpdateHyper> groups{hyper};
    kernels::adagrad_update(test_context(), table.p, table.a, gradients, std::span(segments),
                            std::span(groups));
    const auto got = doubles(table.p);
    for (size_t i = 0; i < p.size(); ++i) {
      const double sum = v[i] + gradient(i) * gradient(i);
      CHECK(std::abs(got[i] - (p[i] - double{1e-2f} * gradient(i) / (std::sqrt(sum) + 1e-10))) <
            1e-6);
    }
  }
  SECTION("rows") {
    const Tensor sums = Tensor::full({row_count}, 0.25f);
    std::vector<int32_t> all(row_count);
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
    const std::array<Tensor, 1> state{sums};
    kernels::rowwise_adagrad_update_rows(test_context(),
                                         RowUpdate{.parameters = table.p,
                                                   .state = state,
                                                   .gradients = gradients,
                                                   .rows = list_of(all),
                                                   .slots = list_of(all),
                                                   .count = row_count},
                                         hyper);
    const auto got = doubles(table.p);
    const auto got_sums = doubles(sums);
    for (size_t row = 0; row < all.size(); ++row) {
      double squares = 0;
      const auto columns = static_cast<size_t>(width);
      for (size_t c = 0; c < columns; ++c) squares += std::pow(gradient(row * columns + c), 2);
      const double sum = 0.25 + squares / static_cast<double>(width);
      CHECK(std::abs(got_sums[row] - sum) < 1e-6 * sum);
      for (size_t c = 0; c < columns; ++c) {
        const size_t i = row * columns + c;
        CHECK(std::abs(got[i] - (p[i] - double{1e-2f} * gradient(i) / (std::sqrt(sum) + 1e-10))) <
              1e-6);
      }
    }
  }
}

TEST_CASE("an update of rows applies the scalars of the step", "[rows]") {
  const Table scaled(8), expected(8), skipped(8), before(8);
  const Tensor gradients = random_tensor({5, 8}, 4);
  const UpdateHyper hyper{.learning_rate = 0.1f};
  UpdateHyper half = hyper;
  half.gradient_scale = 0.5f;
  kernels::sgd_update_rows(test_context(), row_update(expected, {}, gradients), half);
  const auto with = [&](const Table& table, const StepScalars& values) {
    const DeviceScalars scalars(values);
    RowUpdate update = row_update(table, {}, gradients);
    update.scalars = scalars.get();
    kernels::sgd_update_rows(test_context(), update, hyper);
  };
  with(scaled, {.gradient_scale = 0.5f});
  with(skipped, {.gradient_scale = 0.5f, .skip = 1});
  CHECK(values_of(scaled.p) == values_of(expected.p));
  CHECK(values_of(skipped.p) == values_of(before.p));
}

TEST_CASE("sums of touched blocks have the same bits as those of the whole gradient", "[rows]") {
  const int64_t width = GENERATE(1, 8, 20, 256, 300);
  const Tensor sums = random_tensor({5, width}, 5);
  const std::vector<int32_t> rows{0, 3, 4, 17, 36};
  const std::vector<int32_t> places{2, 0, 4, 3, 1};
  const Tensor whole = Tensor::zeros({row_count * width});
  for (size_t i = 0; i < rows.size(); ++i) {
    for (int64_t c = 0; c < width; ++c) {
      whole.values<float>()[static_cast<size_t>(rows[i] * width + c)] =
          sums.values<float>()[static_cast<size_t>(places[i] * width + c)];
    }
  }
  const int64_t all = (row_count * width + 255) / 256;
  const Tensor expected = Tensor::zeros({all}, DType::i64);  // memory for f64 values
  auto* const of_whole = static_cast<double*>(expected.raw());
  kernels::block_square_sums(test_context(), std::span(of_whole, static_cast<size_t>(all)), whole);
  // `blocks` lists the blocks of 256 elements that overlap a touched row. For each of these blocks,
  // `first` has the block's first touched row, as an index into `rows`.
  std::vector<int64_t> blocks;
  std::vector<int32_t> first;
  for (int64_t block = 0; block < all; ++block) {
    for (size_t i = 0; i < rows.size(); ++i) {
      if (rows[i] * width >= (block + 1) * 256 || (rows[i] + 1) * width <= block * 256) continue;
      blocks.push_back(block);
      first.push_back(static_cast<int32_t>(i));
      break;
    }
  }
  const auto count = static_cast<int64_t>(blocks.size());
  const Tensor got = Tensor::zeros({count}, DType::i64);
  auto* const of_touched = static_cast<double*>(got.raw());
  kernels::touched_square_sums(test_context(), std::span(of_touched, blocks.size()),
                               TouchedBlocks{.sums = sums,
                                             .slots = list_of(places),
                                             .rows = list_of(rows),
                                             .blocks = Tensor::from({count}, blocks),
                                             .first = list_of(first),
                                             .row_count = 5,
                                             .block_count = count});
  const Tensor a = got.to_host();
  const Tensor b = expected.to_host();
  const auto* const touched_sums = static_cast<const double*>(a.raw());
  const auto* const whole_sums = static_cast<const double*>(b.raw());
  double total = 0;
  for (int64_t i = 0; i < count; ++i) {
    CAPTURE(width, blocks[static_cast<size_t>(i)]);
    CHECK(touched_sums[i] == whole_sums[blocks[static_cast<size_t>(i)]]);
    total += touched_sums[i];
  }
  double expected_total = 0;
  for (int64_t i = 0; i < all; ++i) expected_total += whole_sums[i];
  CHECK(total == expected_total);  // the other blocks are zero
}

TEST_CASE("fold_rows: fresh rows begin at +0.0, others are added to", "[rows]") {
  const Tensor sums = Tensor::full({4, 3}, 7.0f);
  const Tensor values = Tensor::from<float>({2, 3}, {1, -0.0f, 2, 3, 4, 5});
  kernels::fold_rows(test_context(), RowList{sums, list_of({1, 3})}, 2, RowList{values}, 2);
  const auto got = values_of(sums);
  CHECK(got == std::vector<float>{7, 7, 7, 8, 7, 9, 7, 7, 7, 3, 4, 5});
  kernels::fold_rows(test_context(), RowList{sums, list_of({2})}, 2,
                     RowList{Tensor::from<float>({1, 3}, {-0.0f, 1, 1})}, 1);
  CHECK_FALSE(std::signbit(values_of(sums)[6]));  // 0.0 + -0.0 is +0.0
}
