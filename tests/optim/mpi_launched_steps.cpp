// Tests launched steps (launch_step), whose results are read later. A run of such steps must have
// the same bits as a run that waits for each step. If a step's loss is not finite, the weights must
// stay as they were before this step, even if the next step is already launched.
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/layered_model.h"
#include "tests/support/table_model.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

constexpr int64_t steps = 4;

optim::LaunchedStep launch(optim::ZeroOptimizer& optimizer, const Training& training,
                           int64_t step) {
  for (const auto& micro : optimizer.micro_batches(step, training.batch)) {
    optimizer.backward(training.loss(micro));
  }
  return optimizer.launch_step();
}

// Returns a training of `model`. Its loss is NaN in micro-batch 3 of the steps in `spoilt`.
template <class Model>
Training training_of(Model& model, const std::vector<int64_t>& spoilt) {
  return {.steps = steps, .loss = [&model, spoilt](const MicroBatch& micro) {
            const Tensor loss = model.loss(micro);
            const bool now = std::count(spoilt.begin(), spoilt.end(), micro.step) > 0;
            return now && micro.index == 3 ? ops::scale(loss, std::nanf("")) : loss;
          }};
}

std::string failure_of(optim::LaunchedStep& launched, int64_t micro_batch) {
  try {
    (void)launched.get();
  } catch (const optim::NonFiniteError& error) {
    CHECK(error.micro_batch == micro_batch);
    return error.what();
  }
  return "nothing";
}

TEST_CASE("launched steps, each read after the next is launched: the bits of plain steps") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const optim::ZeroOptions options{.stage = stage, .bucket_bytes = 6000, .clip = 0.5f};
      TinyRun run{.steps = steps, .batch = {.global = 10, .micro = 2}, .dtype = dtype};
      const TrainingResult expected = train_tiny(run, job_world(), options);
      models::Gpt model(run.model);
      model.to(dtype);
      const Training training = tiny_training(run, model);
      optim::ZeroOptimizer optimizer(model, training.rule, job_world(), options);
      std::vector<float> losses, norms;
      const auto ask = [&](optim::LaunchedStep& launched) {
        const optim::StepReport report = launched.get();
        CHECK(report.step == static_cast<int64_t>(losses.size()));
        losses.push_back(report.loss);
        norms.push_back(report.grad_norm);
      };
      std::optional<optim::LaunchedStep> before;
      for (int64_t step = 0; step < steps; ++step) {
        optim::LaunchedStep launched = launch(optimizer, training, step);
        CHECK((launched.ready() || launched.deferred()));
        CHECK(launched.deferred() == (!on_cpu() && dtype != DType::f16));
        if (before) ask(*before);
        before = launched;
      }
      ask(*before);
      CHECK(losses == expected.losses);
      CHECK(norms == expected.grad_norms);
      CHECK(weights_of(optimizer) == expected.weights);
    }
  }
}

TEST_CASE("launched steps: a non-finite step and the next leave the weights unchanged") {
  for (const int stage : {0, 2, 3}) {
    for (const bool next_too : {false, true}) {  // true: the next step is spoilt, too
      CAPTURE(stage, next_too);
      LayeredModel model({.dtypes = {DType::f32, DType::bf16, DType::f32}});
      const Training training =
          training_of(model, next_too ? std::vector<int64_t>{1, 2} : std::vector<int64_t>{1});
      const optim::ZeroOptions options{.stage = stage, .bucket_bytes = 1024};
      optim::ZeroOptimizer optimizer(model, training.rule, job_world(), options);
      (void)launch(optimizer, training, 0).get();
      const Weights weights = weights_of(optimizer);
      optim::LaunchedStep spoilt = launch(optimizer, training, 1);
      optim::LaunchedStep next = launch(optimizer, training, 2);
      CHECK_THAT(failure_of(spoilt, 3), ContainsSubstring("step 2: the loss is not finite"));
      CHECK(weights_of(optimizer) == weights);
      CHECK(failure_of(next, -1) ==
            "step 3: nothing was updated, because the earlier step 2 was not finite");
      CHECK(weights_of(optimizer) == weights);
      // After catching the errors, training can continue as if the two steps had not been launched.
      (void)launch(optimizer, training, 3).get();

      LayeredModel other({.dtypes = {DType::f32, DType::bf16, DType::f32}});
      const Training clean = training_of(other, {});
      optim::ZeroOptimizer expected(other, clean.rule, job_world(), options);
      for (const int64_t step : {0, 3}) (void)launch(expected, clean, step).get();
      CHECK(weights_of(optimizer) == weights_of(expected));
    }
  }
}

TEST_CASE("launched steps: a non-finite step leaves row-sparse tables unchanged") {
  for (const int stage : {0, 2, 3}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      CAPTURE(stage, dtype_name(dtype));
      TableModel model({.dtype = dtype});
      const Training training = training_of(model, {1});
      optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {.stage = stage});
      (void)launch(optimizer, training, 0).get();
      const Weights weights = weights_of(optimizer);
      const auto state = optimizer.consolidated_state();
      optim::LaunchedStep spoilt = launch(optimizer, training, 1);
      optim::LaunchedStep next = launch(optimizer, training, 2);
      CHECK_THAT(failure_of(spoilt, 3), ContainsSubstring("step 2: the loss is not finite"));
      (void)failure_of(next, -1);
      CHECK(weights_of(optimizer) == weights);
      for (const auto& [name, shard] : optimizer.consolidated_state()) {
        CHECK(shard.values == state.at(name).values);
      }
      // Adam's bias correction must not count the two steps either.
      (void)launch(optimizer, training, 3).get();
      TableModel other({.dtype = dtype});
      const Training clean = training_of(other, {});
      optim::ZeroOptimizer expected(other, clean.rule, job_world(), {.stage = stage});
      for (const int64_t step : {0, 3}) (void)launch(expected, clean, step).get();
      CHECK(weights_of(optimizer) == weights_of(expected));
    }
  }
}

TEST_CASE("launched steps: a launch that throws leaves the result of the step before it") {
  const std::vector<DType> dtypes(3, DType::f16);
  const optim::ZeroOptions options{.loss_scaling = optim::LossScaling{.initial = 1}};
  LayeredModel other({.dtypes = dtypes});
  const Training clean = training_of(other, {});
  optim::ZeroOptimizer expected(other, clean.rule, job_world(), options);
  const float loss = launch(expected, clean, 0).get().loss;

  LayeredModel model({.dtypes = dtypes});
  const Training training = training_of(model, {1});
  optim::ZeroOptimizer optimizer(model, training.rule, job_world(), options);
  optim::LaunchedStep first = launch(optimizer, training, 0);
  CHECK_THROWS_WITH(launch(optimizer, training, 1), ContainsSubstring("loss scale of 1"));
  optim::LaunchedStep third = launch(optimizer, training, 2);
  CHECK(first.get().loss == loss);
  const optim::StepReport report = third.get();
  CHECK(report.step == 2);
  CHECK(report.loss != loss);
}

TEST_CASE("launched steps: two may be under way, and each is read once, in order") {
  LayeredModel model;
  const Training training = training_of(model, {});
  optim::ZeroOptimizer optimizer(model, training.rule, job_world(), {});
  optim::LaunchedStep first = launch(optimizer, training, 0);
  optim::LaunchedStep second = launch(optimizer, training, 1);
  CHECK_THROWS_WITH(second.get(), "get: the result of step 1 must be asked for first");
  LayeredModel more;
  CHECK_THROWS_WITH(optimizer.add_param_group(more, {}), "add_param_group: step 2 is not finished");
  CHECK_THROWS_WITH(launch(optimizer, training, 2),
                    ContainsSubstring("call get() of step 1 first"));
  (void)first.get();
  CHECK_THROWS_WITH(first.get(), "get: the result of this step was asked for before");
  const optim::LaunchedStep third = optimizer.launch_step();  // the step that was refused above
  (void)second.get();
  (void)optim::LaunchedStep(third).get();
}

}  // namespace
}  // namespace tessera::test
