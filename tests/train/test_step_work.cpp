// Tests what StepLoop does around the functions of StepWork.
#include <algorithm>
#include <cmath>
#include <span>
#include <string>

#include "core/error.h"
#include "core/ops.h"
#include "nn/layers.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"
#include "train/step_loop.h"
#include "train/weights.h"

using namespace tessera;
using namespace tessera::train;

namespace {

// Returns a world of one rank, and switches messages off.
dist::World alone() {
  set_up_messages(false);
  return test::lone_world();
}

// A model with a row-sparse table, of which every micro-batch looks up rows 1 and 5.
struct TwoRows : nn::Module {
  TwoRows() { add("table", table); }
  Tensor loss(float scale = 1) {
    const Tensor rows = ops::mul(table.forward(indices()), Tensor::full({2, 4}, scale));
    return ops::mean(ops::mul(rows, rows));
  }
  static Tensor indices() { return Tensor::from<int32_t>({2}, {1, 5}); }
  nn::Embedding table{8, 4, {.sparse = true, .distinct = 2}};
};

}  // namespace

TEST_CASE("the best weights are those that were evaluated, and the trained ones come back") {
  const test::TemporaryFolder folder;
  const dist::World world = alone();
  const auto trained = [&](bool averages) {
    nn::Linear model(4, 4);
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 3});
    RunLog log("");
    test::Weights weights;
    const auto ones = [](const nn::NamedParameter&, int64_t, std::span<float> out) {
      std::ranges::fill(out, 1.0f);
    };
    const auto back = [&](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
      std::copy_n(weights.at(named.name).begin() + begin, out.size(), out.begin());
    };
    StepLoop loop({.steps = 2,
                   .batch = {.global = 2, .micro = 2},
                   .eval_every = 1,
                   .weights = {.path = folder.path("w.safetensors"), .best = true}},
                  world, optimizer, log,
                  {.unit = "samples",
                   .units_per_step = 2,
                   .forward =
                       [&](const MicroBatch&) {
                         const Tensor y = model.forward(Tensor::full({2, 4}, 1));
                         return ops::mean(ops::mul(y, y));
                       },
                   .evaluate = [&](int64_t done) -> StepWork::Evaluation {
                     StepWork::Evaluation result{
                         .line = eval_line(done, 1), .text = "text", .score = Score{.value = 1}};
                     if (!averages) return result;
                     weights = test::weights_of(optimizer);
                     optimizer.set_parameters(ones, optim::RuleState::keep);
                     result.after = [&] { optimizer.set_parameters(back, optim::RuleState::keep); };
                     return result;
                   },
                   .open_weights = [&](const std::string& path,
                                       int64_t) { return open_weights(path, model); }});
    loop.train();
    return test::weights_of(optimizer);
  };
  const test::Weights plain = trained(false);
  nn::Linear best(4, 4);
  const auto largest_and_smallest = [&] {
    nn::load_weights(best_weights_path(folder.path("w.safetensors")), best);
    const Tensor here = best.weight.tensor().to_host();
    const auto [low, high] = std::ranges::minmax(here.values<float>());
    return std::pair(low, high);
  };
  CHECK(largest_and_smallest() != std::pair(1.0f, 1.0f));
  CHECK(trained(true) == plain);
  CHECK(largest_and_smallest() == std::pair(1.0f, 1.0f));
}

TEST_CASE("if the search for a non-finite operation fails, the error still says what happened") {
  const dist::World world = alone();
  TwoRows model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world);
  RunLog log("");
  StepLoop loop({.steps = 1, .batch = {.global = 1, .micro = 1}}, world, optimizer, log,
                {.unit = "samples", .units_per_step = 1, .forward = [&](const MicroBatch&) {
                   optimizer.prefetch(model.table, TwoRows::indices());
                   return model.loss(NAN);
                 }});
  CHECK(test::message_of<Error>([&] { loop.train(); }) ==
        "step 1: the loss is not finite (nan); the search for the operation failed: prefetch: "
        "called outside of a micro-batch; call it before the backward of the micro-batch that "
        "computes while the rows arrive");
}

TEST_CASE("a loop counts the rows of its own steps, not those of an earlier loop") {
  const dist::World world = alone();
  TwoRows model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world);
  RunLog log("");
  const auto rows_of_steps = [&](int64_t first, int64_t end) {
    StepLoop loop({.steps = end, .batch = {.global = 2, .micro = 1}, .first_step = first}, world,
                  optimizer, log,
                  {.unit = "samples", .units_per_step = 2, .forward = [&](const MicroBatch&) {
                     return model.loss();
                   }});
    loop.train();
    return loop.count().rows.at("table.weight");
  };
  // Both micro-batches of a step look up the same two rows, which are in one block of 256 elements.
  for (const auto& [first, end] : {std::pair(0, 2), std::pair(2, 5)}) {
    CAPTURE(first);
    const optim::RowCounts rows = rows_of_steps(first, end);
    const int64_t steps = end - first;
    CHECK(rows.looked_up == 4 * steps);
    CHECK(rows.touched == 2 * steps);
    CHECK(rows.updated == 2 * steps);
    CHECK(rows.blocks == steps);
    CHECK(rows.updates == steps);
  }
}
