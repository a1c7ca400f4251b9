// Tests what StepLoop does around the functions of StepWork.
#include <algorithm>
#include <span>
#include <string>

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
