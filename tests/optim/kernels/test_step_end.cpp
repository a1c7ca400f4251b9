// Tests that the bits of add_block_sums do not depend on how ranks and buckets divide the
// gradient's blocks of 256 elements. Compares end_step with values that the test computes.
#include <cmath>
#include <limits>
#include <numeric>

#include "optim/kernels/step_end.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/step_scalars.h"

using namespace tessera;
using namespace tessera::test;

namespace {

double block_sum(int64_t number) { return 1 + std::abs(std::sin(static_cast<double>(number))); }

/// Returns the sum that add_block_sums computes if block i has the sum block_sum(i). `parameters`
/// holds the number of blocks of each parameter. Each bucket holds `per_bucket` parameters, and is
/// divided into `ranks` equal shards of whole blocks. A shard's size is rounded up, so the last
/// shards may be partly or wholly empty.
double square_sum(const std::vector<int64_t>& parameters, int64_t ranks, size_t per_bucket) {
  std::vector<BlockSums::Segment> segments;
  int64_t blocks = 0;
  int64_t per_rank = 0;
  for (size_t first = 0; first < parameters.size(); first += per_bucket) {
    const size_t end = std::min(parameters.size(), first + per_bucket);
    const int64_t in_bucket =
        std::accumulate(parameters.begin() + static_cast<ptrdiff_t>(first),
                        parameters.begin() + static_cast<ptrdiff_t>(end), int64_t{0});
    const int64_t shard_blocks = (in_bucket + ranks - 1) / ranks;
    int64_t place = 0;
    for (size_t p = first; p < end; ++p) {
      segments.push_back({blocks, place, shard_blocks, per_rank});
      place += parameters[p];
      blocks += parameters[p];
    }
    per_rank += shard_blocks;
  }
  const auto f64 = [](int64_t count) { return Tensor::zeros({count}, DType::i64); };
  const Tensor values = f64(ranks * per_rank), partial_sums = f64((blocks + 1023) / 1024),
               table = f64(4 * std::ssize(segments));
  (void)table.values<int64_t>();  // waits for the device, so that the host may write
  for (size_t s = 0; s < segments.size(); ++s) {
    static_cast<BlockSums::Segment*>(table.raw())[s] = segments[s];
    for (int64_t i = 0; i < parameters[s]; ++i) {
      const int64_t number = segments[s].begin + i;
      static_cast<double*>(values.raw())[segments[s].place(number, per_rank)] = block_sum(number);
    }
  }
  const DeviceScalars scalars;
  kernels::add_block_sums(test_context(), scalars.get(),
                          BlockSums{.values = static_cast<double*>(values.raw()),
                                    .per_rank = per_rank,
                                    .segments = static_cast<BlockSums::Segment*>(table.raw()),
                                    .segment_count = std::ssize(segments),
                                    .blocks = blocks,
                                    .partial_sums = static_cast<double*>(partial_sums.raw())});
  return scalars.values().square_sum;
}

StepScalars end_of(const std::vector<float>& losses, const StepEnd& end, StepScalars before) {
  const DeviceScalars scalars(before);
  const Tensor on_device = Tensor::from({std::ssize(losses)}, losses);
  kernels::end_step(test_context(), scalars.get(), on_device, end);
  return scalars.values();
}

constexpr float infinity = std::numeric_limits<float>::infinity();

}  // namespace

TEST_CASE("add_block_sums: the same bits for any ranks and buckets", "[step_end]") {
  // The cases:
  //   more blocks than the 1024 of one partial sum, and parameters without blocks;
  //   a single block;
  //   no parameters.
  const std::vector<int64_t> parameters =
      GENERATE(std::vector<int64_t>{700, 1, 0, 3000, 37, 0}, std::vector<int64_t>{1},
               std::vector<int64_t>{});
  const double lone = square_sum(parameters, 1, 1);
  double expected = 0;
  const int64_t blocks = std::accumulate(parameters.begin(), parameters.end(), int64_t{0});
  for (int64_t i = 0; i < blocks; ++i) expected += block_sum(i);
  REQUIRE(std::abs(lone - expected) <= 1e-12 * expected);
  for (const int64_t ranks : {1, 2, 3, 7}) {
    for (const size_t per_bucket : {1, 2, 6}) {
      CAPTURE(ranks, per_bucket);
      REQUIRE(square_sum(parameters, ranks, per_bucket) == lone);
    }
  }
}

TEST_CASE("end_step: loss in order of micro-batch, norm and clip factor", "[step_end]") {
  const int64_t ranks = GENERATE(1, 3);
  const int64_t micro_batches = GENERATE(1, 7, 600);
  const int64_t micro_steps = (micro_batches + ranks - 1) / ranks;
  const float share = 1.0f / static_cast<float>(micro_batches);
  std::vector<float> losses(static_cast<size_t>(ranks * micro_steps), NAN);  // NaN where unused
  float total = 0;
  for (int64_t m = 0; m < micro_batches; ++m) {
    const float loss = 3 + std::sin(static_cast<float>(m));
    losses[static_cast<size_t>(m % ranks * micro_steps + m / ranks)] = loss;
    total = std::fma(share, loss, total);
  }
  StepEnd end{.ranks = ranks,
              .micro_steps = micro_steps,
              .micro_batches = micro_batches,
              .share = share,
              .correction = 1.5f,
              .gradient_factor = 0.75f};
  const StepScalars before{.square_sum = 1234.5};
  const StepScalars free = end_of(losses, end, before);
  REQUIRE(free.loss == total * 1.5f);
  REQUIRE(free.norm == static_cast<float>(std::sqrt(1234.5) * 0.75));
  REQUIRE(free.gradient_scale == 0.75f);
  REQUIRE(free.non_finite == -1);
  REQUIRE(free.skip == 0);
  for (const float clip : {0.3f, 1000.0f}) {
    end.clip = clip;
    const StepScalars clipped = end_of(losses, end, before);
    const float factor = std::min(1.0f, clip / (free.norm + 1e-6f));
    REQUIRE(clipped.gradient_scale == factor * 0.75f);
    REQUIRE(clipped.norm == free.norm);
  }
}

TEST_CASE("end_step: a step that is not finite is skipped, and so are those after it",
          "[step_end]") {
  const StepEnd end{.ranks = 2, .micro_steps = 2, .micro_batches = 3};
  const StepScalars before{.square_sum = 4};
  REQUIRE(end_of({1, NAN, 1, 0}, end, before).skip == 1);
  REQUIRE(end_of({1, NAN, 1, 0}, end, before).non_finite == 2);
  REQUIRE(end_of({1, 2, -infinity, 0}, end, before).non_finite == 1);
  const StepScalars spoilt = end_of({1, 2, 3, 0}, end, {.square_sum = infinity});
  REQUIRE(spoilt.skip == 1);
  REQUIRE(spoilt.non_finite == -1);
  const StepScalars after{.square_sum = 4, .skip = 1};
  REQUIRE(end_of({1, 2, 3, 0}, end, after).skip == 1);
  StepEnd scaled = end;
  scaled.keep_skipping = false;
  REQUIRE(end_of({1, 2, 3, 0}, scaled, after).skip == 0);
  REQUIRE(end_of({1, 2, 3, 0}, scaled, after).loss == 6);
}
