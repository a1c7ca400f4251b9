#include "optim/kernels/fold_statistics.h"
#include "tests/support/catch.h"

namespace tessera::test {
namespace {

// Returns the values that 2 ranks gathered in 2 micro-steps, as (ranks, micro-steps, S + 1). A row
// has the S = 2 statistics of a micro-batch, then 1 if the micro-batch had data. Rank 0 has
// micro-batches 0 and 2, rank 1 has micro-batch 1. In the second micro-step, rank 1 has no
// micro-batch. The values 999 in that row must not be read.
Tensor observed() {
  return Tensor::from<float>({2, 2, 3}, {1, 10, 1, 3, 30, 1, 2, 20, 1, 999, 999, 1});
}

TEST_CASE("fold_statistics folds the micro-batches in order, and skips unused places") {
  const Tensor running = Tensor::from<float>({2}, {0, 1});
  const Context context = current_context(running.device());
  const StatisticsFold fold{.ranks = 2, .micro_steps = 2, .micro_batches = 3, .momentum = 0.5f};
  kernels::fold_statistics(context, running, observed(), fold, nullptr);
  // By hand: the first statistic starts at 0 and takes the values 1, 2, 3 of micro-batches 0, 1, 2
  // with momentum 1/2. This gives ((0 / 2 + 1 / 2) / 2 + 2 / 2) / 2 + 3 / 2.
  CHECK(running.to_host().data<float>()[0] == 2.125f);
  CHECK(running.to_host().data<float>()[1] == 21.375f);
}

TEST_CASE("fold_statistics leaves out micro-batches without data, and skipped steps") {
  const Tensor running = Tensor::from<float>({2}, {4, 8});
  const Context context = current_context(running.device());
  const Tensor values = observed();
  values.data<float>()[8] = 0;  // micro-batch 1 had no data
  const StatisticsFold fold{.ranks = 2, .micro_steps = 2, .micro_batches = 2, .momentum = 0.5f};
  const Tensor scalars = Tensor::zeros({8});  // as large as StepScalars
  auto* const step = static_cast<StepScalars*>(scalars.raw());
  step->skip = 1;
  kernels::fold_statistics(context, running, values, fold, step);
  CHECK(running.to_host().data<float>()[0] == 4);
  step->skip = 0;
  kernels::fold_statistics(context, running, values, fold, step);
  CHECK(running.to_host().data<float>()[0] == 2.5f);
  CHECK(running.to_host().data<float>()[1] == 9);
}

}  // namespace
}  // namespace tessera::test
