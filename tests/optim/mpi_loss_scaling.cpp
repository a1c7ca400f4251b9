// Tests f16 with dynamic loss scaling, and other precisions with values that are not finite. If a
// value is not finite on one rank, all ranks must decide alike, and no weight may change.
#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/catch.h"
#include "tests/support/layered_model.h"
#include "tests/support/memory_use.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int64_t micro_batches = 7;

// In each step of `steps` the loss of micro-batch `micro_batch` is multiplied by `factor`. Only
// ranks that compute this micro-batch see the large loss.
struct Overflowing {
  DType dtype = DType::f16;
  std::vector<int64_t> steps;
  int64_t micro_batch = 1;
  float factor = 1e20f;
};

Training training_of(LayeredModel& model, const Overflowing& overflowing, int64_t steps) {
  return {.steps = steps,
          .batch = {.global = 2 * micro_batches, .micro = 2},
          .loss = [&model, overflowing](const MicroBatch& micro) {
            const Tensor loss = model.loss(micro);
            const bool now = std::find(overflowing.steps.begin(), overflowing.steps.end(),
                                       micro.step) != overflowing.steps.end();
            if (!now || micro.index != overflowing.micro_batch) return loss;
            return ops::scale(loss, overflowing.factor);
          }};
}

LayeredOptions layers_of(DType dtype) { return {.dtypes = {dtype, dtype, dtype}}; }

TrainingResult train_overflowing(const Overflowing& overflowing, const dist::World& world,
                                 int stage, const optim::LossScaling& scaling, int64_t steps) {
  LayeredModel model(layers_of(overflowing.dtype));
  return train(model, training_of(model, overflowing, steps), world,
               {.stage = stage, .bucket_bytes = 1024, .clip = 0.1f, .loss_scaling = scaling});
}

TEST_CASE("f16: an overflow on one rank skips the step on all, halves the scale, and it recovers") {
  const optim::LossScaling scaling{.initial = 1024, .growth_interval = 2};
  const std::vector<bool> skipped = {false, true, true, false, false, false, true, false};
  const std::vector<float> scales = {1024, 1024, 512, 256, 256, 512, 512, 256};
  for (const int64_t micro_batch : {int64_t{0}, int64_t{1}, micro_batches - 1}) {
    const Overflowing overflowing{.steps = {1, 2, 6}, .micro_batch = micro_batch};
    const auto expected = train_overflowing(overflowing, lone_world(), 0, scaling, 8);
    CHECK(expected.skipped == skipped);
    CHECK(expected.loss_scales == scales);
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(micro_batch, stage);
      CHECK(train_overflowing(overflowing, job_world(), stage, scaling, 8) == expected);
    }
  }
}

TEST_CASE("f16: a skipped step changes neither weights nor state, on any rank") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    LayeredModel model(layers_of(DType::f16));
    const Training training = training_of(model, {.steps = {1}}, 3);
    optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {.stage = stage});
    TrainingResult result;
    train_step(optimizer, training, 0, result);
    const Weights weights = weights_of(optimizer);
    const auto state = optimizer.consolidated_state();
    train_step(optimizer, training, 1, result);
    CHECK(result.skipped == std::vector<bool>{false, true});
    CHECK(weights_of(optimizer) == weights);
    for (const auto& [name, shard] : optimizer.consolidated_state()) {
      CHECK(shard.values == state.at(name).values);
    }
    train_step(optimizer, training, 2, result);
    CHECK(weights_of(optimizer) != weights);
  }
}

TEST_CASE("f16: a skipped step does not count for Adam's bias correction") {
  // Trains two steps on the same batches, with and without a skipped step in between.
  const auto run = [](const dist::World& world, const std::vector<int64_t>& steps) {
    LayeredModel model(layers_of(DType::f16));
    const Training training = training_of(model, {.steps = {1}}, 0);
    optim::ZeroOptimizer optimizer(model, training.rule, world, {.stage = 2});
    TrainingResult result;
    for (const int64_t step : steps) train_step(optimizer, training, step, result);
    return weights_of(optimizer);
  };
  CHECK(run(job_world(), {0, 1, 2}) == run(lone_world(), {0, 2}));
}

TEST_CASE("f16: a scale that would fall under 1 stops on every rank with an error that says so") {
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    LayeredModel model(layers_of(DType::f16));
    const Training training = training_of(model, {.steps = {0, 1, 2}}, 3);
    optim::ZeroOptimizer optimizer(
        model, training.rule, job_world(),
        {.stage = stage, .loss_scaling = optim::LossScaling{.initial = 2}});
    const Weights weights = weights_of(optimizer);
    TrainingResult result;
    train_step(optimizer, training, 0, result);
    const dist::World world = job_world();
    const MemoryUse memory(*world.communicator, world.communicator->device());
    CHECK_THROWS_WITH(train_step(optimizer, training, 1, result),
                      ContainsSubstring("step 2") && ContainsSubstring("loss scale of 1"));
    // The failed step is closed: its gradients are freed, as after a step that is skipped.
    world.communicator->barrier();
    CHECK(memory.current(Category::gradients) == 0);
    CHECK(result.skipped == std::vector<bool>{true});
    CHECK(weights_of(optimizer) == weights);
  }
}

TEST_CASE("f16: the scale changes no result where nothing overflows or vanishes") {
  // Scaling by a power of two is exact, except for values that overflow or are too small for f16's
  // normal range. Small gradients are rounded at either scale, so the norms may differ slightly.
  const auto run = [](float scale) {
    return train_overflowing({}, job_world(), 2, {.initial = scale}, 4);
  };
  const TrainingResult small = run(4096);
  const TrainingResult large = run(8192);
  CHECK(small.losses == large.losses);
  for (size_t i = 0; i < small.grad_norms.size(); ++i) {
    CHECK(small.grad_norms[i] == Catch::Approx(large.grad_norms[i]).epsilon(1e-3));
  }
}

TEST_CASE("a loss that is not finite: NonFiniteError with its micro-batch, on every rank") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      for (const float factor : {infinity, std::nanf("")}) {
        CAPTURE(dtype_name(dtype), stage, factor);
        LayeredModel model(layers_of(dtype));
        const Overflowing overflowing{dtype, {1}, micro_batches - 2, factor};
        const Training training = training_of(model, overflowing, 3);
        optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {.stage = stage});
        TrainingResult result;
        train_step(optimizer, training, 0, result);
        const Weights weights = weights_of(optimizer);
        int64_t micro_batch = -2;
        std::string text;
        try {
          train_step(optimizer, training, 1, result);
        } catch (const optim::NonFiniteError& error) {
          micro_batch = error.micro_batch;
          text = error.what();
        }
        CHECK(micro_batch == micro_batches - 2);
        CHECK_THAT(text, ContainsSubstring("step 2: the loss is not finite"));
        CHECK(weights_of(optimizer) == weights);
        // After catching the error, training can continue.
        train_step(optimizer, training, 2, result);
        CHECK(weights_of(optimizer) != weights);
      }
    }
  }
}

TEST_CASE("a non-finite gradient with a finite loss: NonFiniteError without a micro-batch") {
  for (const int stage : {0, 3}) {
    LayeredModel model(layers_of(DType::f32));
    Training training = training_of(model, {}, 1);
    const auto loss = training.loss;
    training.loss = [&](const MicroBatch& micro) {
      const Tensor value = loss(micro);
      if (micro.index != 2) return value;
      return record("spoil", value.detach(), {value}, [](const Tensor& dy, InputGradients& grads) {
        grads.pass(0, Tensor::full(dy.shape(), std::nanf("")));
      });
    };
    optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {.stage = stage});
    const Weights weights = weights_of(optimizer);
    TrainingResult result;
    int64_t micro_batch = -2;
    try {
      train_step(optimizer, training, 0, result);
    } catch (const optim::NonFiniteError& error) {
      micro_batch = error.micro_batch;
      CHECK_THAT(error.what(), ContainsSubstring("step 1: the gradient norm is not finite"));
    }
    CHECK(micro_batch == -1);
    CHECK(weights_of(optimizer) == weights);
  }
}

TEST_CASE("loss scaling in f32, if asked for: skips an overflow, and keeps the bits of f32") {
  const Overflowing overflowing{DType::f32, {1}, 1, std::numeric_limits<float>::infinity()};
  const optim::LossScaling scaling{.initial = 256};
  const auto scaled = train_overflowing(overflowing, job_world(), 3, scaling, 2);
  CHECK(scaled.skipped == std::vector<bool>{false, true});
  CHECK(scaled.loss_scales == std::vector<float>{256, 256});
  LayeredModel model(layers_of(DType::f32));
  const auto plain = train(model, training_of(model, {}, 1), job_world(),
                           {.stage = 3, .bucket_bytes = 1024, .clip = 0.1f});
  CHECK(scaled.weights == plain.weights);
}

// A state with a loss scale of 2, in which each count is 5 except that of `refused`, which is -1.
// Weights and the update rule's state are zeros.
class RefusedState : public optim::StateSource {
 public:
  explicit RefusedState(std::string refused) : refused_(std::move(refused)) {}
  void read(const std::string& path, int64_t, std::span<float> out) const override {
    std::ranges::fill(out, path == "loss_scaler/scale" ? 2.0f : 0.0f);
  }
  int64_t count(const std::string& path) const override { return path == refused_ ? -1 : 5; }

 private:
  std::string refused_;
};

TEST_CASE("f16: a state with an invalid count is refused, and changes nothing") {
  const auto run = [](int stage, const std::vector<std::string>& refused) {
    LayeredModel model(layers_of(DType::f16));
    const Training training = training_of(model, {}, 2);
    optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {.stage = stage});
    TrainingResult result;
    train_step(optimizer, training, 0, result);
    for (const std::string& path : refused) {
      CHECK_THROWS_AS(optimizer.restore_state(RefusedState(path)), InputError);
    }
    train_step(optimizer, training, 1, result);
    result.weights = weights_of(optimizer);
    return result;
  };
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    CHECK(run(stage, {"2.bias/updates", "loss_scaler/good_steps"}) == run(stage, {}));
  }
}

}  // namespace
}  // namespace tessera::test
