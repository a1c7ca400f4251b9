// Tests uneven data. Ranks that have run out of data must join the collectives of the other ranks
// without changing the result. The result must equal that of a single rank that leaves out the same
// micro-batches.
#include <functional>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/layered_model.h"
#include "tests/support/mixed_model.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

// True for micro-batches without data.
using Missing = std::function<bool(int64_t step, int64_t micro_batch)>;

TrainingResult train_uneven(const TinyRun& run, const dist::World& world,
                            const optim::ZeroOptions& options, const Missing& missing) {
  models::Gpt model(run.model);
  model.to(run.dtype);
  Training training = tiny_training(run, model);
  const auto loss = training.loss;
  training.loss = [&](const MicroBatch& micro) {
    return missing(micro.step, micro.index) ? Tensor() : loss(micro);
  };
  return train(model, training, world, options);
}

// There are 13 micro-batches. With 2 to 5 ranks:
//   ranks run out of data at different micro-steps;
//   some ranks have no micro-batch in the last micro-step;
//   in some micro-step no rank has data.
const Missing run_out = [](int64_t step, int64_t m) {
  // At stage 3 every rank's first micro-batch of a run must have data.
  if (step == 0) return m >= 11 || m == 7;
  if (step == 1) return m >= 5 && m != 8;
  return m != 3;
};

TEST_CASE("ranks that run out of data: the bits of one rank that skips the same data") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TinyRun run{.steps = 3, .batch = {.global = 26, .micro = 2}, .dtype = dtype};
    const TrainingResult expected =
        train_uneven(run, lone_world(), {.stage = 0, .clip = 0.5f}, run_out);
    CHECK(expected.weights !=
          train_uneven(run, lone_world(), {.stage = 0, .clip = 0.5f}, [](auto, auto) {
            return false;
          }).weights);
    for (const int stage : {0, 1, 2, 3}) {
      for (const bool overlap : {true, false}) {
        CAPTURE(dtype_name(dtype), stage, overlap);
        const optim::ZeroOptions options{
            .stage = stage, .bucket_bytes = 3000, .overlap = overlap, .clip = 0.5f};
        CHECK(train_uneven(run, job_world(), options, run_out) == expected);
      }
    }
  }
}

TEST_CASE("ranks that run out of data, with recompute and rounded gradient sums") {
  TinyRun run{.steps = 3, .batch = {.global = 26, .micro = 2}, .dtype = DType::bf16};
  run.model.recompute = true;
  const auto options = [](int stage) {
    return optim::ZeroOptions{.stage = stage, .bucket_bytes = 64, .grad_shard = DType::bf16};
  };
  const TrainingResult expected = train_uneven(run, lone_world(), options(0), run_out);
  for (const int stage : {0, 1, 2, 3}) {
    CAPTURE(stage);
    CHECK(train_uneven(run, job_world(), options(stage), run_out) == expected);
  }
}

TEST_CASE("the loss and the gradient are means over the micro-batches that had data") {
  // Only the first 4 of 8 micro-batches have data. The result must equal that of a step with only
  // these 4 micro-batches. Stage 3 runs on one rank, because it refuses ranks whose first
  // micro-batch has no data.
  const auto run = [](int64_t global, int64_t with_data, int stage) {
    LayeredModel model;
    const Training training{
        .steps = 1, .batch = {.global = global, .micro = 1}, .loss = [&](const MicroBatch& micro) {
          return micro.index < with_data ? model.loss(micro) : Tensor();
        }};
    return train(model, training, stage == 3 ? lone_world() : job_world(), {.stage = stage});
  };
  for (const int stage : {0, 1, 2, 3}) {
    const TrainingResult uneven = run(8, 4, stage);
    const TrainingResult even = run(4, 4, stage);
    // With 8 micro-batches each gradient is scaled by 1/8, and the sum at the end by 8/4 = 2. With
    // 4 micro-batches each gradient is scaled by 1/4. Scaling by powers of two does not round, so
    // the results are bit-equal.
    CHECK(uneven == even);
  }
}

TEST_CASE("a step without any data changes nothing") {
  for (const DType dtype : {DType::f32, DType::f16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const TinyRun run{.steps = 3, .dtype = dtype};
      const bool scaled = dtype == DType::f16;
      optim::ZeroOptions options{.stage = stage, .bucket_bytes = 3000};
      // If step 1, which has no data, counted as a good step, the scale would double before step 2.
      // (loss_scales holds the scale that each step ran with.)
      if (scaled) options.loss_scaling = optim::LossScaling{.initial = 256, .growth_interval = 2};
      const auto result = train_uneven(run, job_world(), options,
                                       [](int64_t step, int64_t) { return step == 1; });
      CHECK(result.skipped == std::vector<bool>{false, true, false});
      CHECK(result.losses[1] == 0);
      CHECK(result.grad_norms[1] == 0);
      const float scale = scaled ? 256 : 1;
      CHECK(result.loss_scales == std::vector<float>{scale, scale, scale});
      // Adam's bias correction counts two steps, as if the step in between had not happened.
      models::Gpt model(run.model);
      model.to(dtype);
      optim::ZeroOptimizer optimizer(model, optim::AdamW{.learning_rate = 1e-2f}, job_world(),
                                     options);
      TrainingResult without;
      train_step(optimizer, tiny_training(run, model), 0, without);
      train_step(optimizer, tiny_training(run, model), 2, without);
      CHECK(weights_of(optimizer) == result.weights);
    }
  }
}

TEST_CASE("a step without data reports no parameters without gradient") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 2});
  const Batch batch{.global = 4, .micro = 2};
  const auto nothing = [](const MicroBatch&) { return Tensor(); };
  CHECK(optimizer.step(0, batch, nothing).without_gradient.empty());
  const auto first = [&](const MicroBatch& micro) { return model.loss(micro, {0}); };
  CHECK(optimizer.step(1, batch, first).without_gradient.size() == 4);
  CHECK(optimizer.step(2, batch, first).without_gradient.empty());
}

TEST_CASE("a step with a closure equals a loop over its micro-batches") {
  for (const int stage : {0, 1, 2, 3}) {
    const TinyRun run{.steps = 3, .batch = {.global = 26, .micro = 2}};
    const TrainingResult loop =
        train_uneven(run, job_world(), {.stage = stage, .bucket_bytes = 3000}, run_out);
    models::Gpt model(run.model);
    const Training training = tiny_training(run, model);
    optim::ZeroOptimizer optimizer(model, training.rule, job_world(),
                                   {.stage = stage, .bucket_bytes = 3000});
    std::vector<float> losses;
    for (int64_t step = 0; step < run.steps; ++step) {
      const auto report = optimizer.step(step, run.batch, [&](const MicroBatch& micro) {
        return run_out(step, micro.index) ? Tensor() : training.loss(micro);
      });
      losses.push_back(report.loss);
    }
    CHECK(losses == loop.losses);
    CHECK(weights_of(optimizer) == loop.weights);
  }
}

// Begins a step that the test does not finish, and returns its first micro-batch.
MicroBatch begun(optim::ZeroOptimizer& optimizer) {
  return *optimizer.micro_batches(0, {.global = 10, .micro = 2}).begin();
}

// Calls skip() at stage 3 on a rank that has had no data yet, or none since parameters joined the
// optimizer. With several ranks skip() must throw, because the rank does not know the order in
// which the other ranks gather parameters. A single rank may skip.
void check_skip_refused(optim::ZeroOptimizer& optimizer) {
  if (job_world().size > 1) {
    CHECK_THROWS_WITH(optimizer.skip(),
                      ContainsSubstring("a rank without data in its first micro-batch, or in the "
                                        "first one after add_param_group, cannot know"));
  } else {
    optimizer.skip();
  }
}

TEST_CASE("stage 3: several ranks refuse a first micro-batch without data") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 3});
  begun(optimizer);
  check_skip_refused(optimizer);
  LayeredModel other;
  optim::ZeroOptimizer whole_parameters(other, optim::AdamW{}, job_world(), {.stage = 2});
  begun(whole_parameters);
  whole_parameters.skip();
}

TEST_CASE("stage 3: after add_param_group, the first micro-batch must have data again") {
  LayeredModel model;
  MixedModel later(DType::bf16);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 3});
  const Training training{.batch = {.global = 10, .micro = 2},
                          .loss = [&](const auto& micro) { return model.loss(micro); }};
  TrainingResult result;
  train_step(optimizer, training, 0, result);
  optimizer.add_param_group(later, {});
  begun(optimizer);
  check_skip_refused(optimizer);
}

TEST_CASE("stage 3: skipping a micro-batch whose forward has begun is refused") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 3});
  const MicroBatch micro = begun(optimizer);
  model.loss(micro);
  CHECK_THROWS_WITH(optimizer.skip(),
                    ContainsSubstring("skip() was called after operations had read"));
}

TEST_CASE("after a loss without history is refused, the micro-batch can be skipped") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, lone_world());
  const auto batches = optimizer.micro_batches(0, {.global = 1, .micro = 1});
  [[maybe_unused]] const auto first = batches.begin();
  CHECK_THROWS_WITH(optimizer.backward(Tensor::full({}, 1)),
                    ContainsSubstring("the loss has no history"));
  optimizer.skip();
  CHECK(optimizer.step().skipped);
}

TEST_CASE("a loss may be a parameter itself") {
  class Scalar : public nn::Module {
   public:
    Scalar() { add("weight", weight); }
    nn::Parameter weight{{}, nn::Initializer::ones()};
  };
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    Scalar model;
    optim::ZeroOptimizer optimizer(model, optim::Sgd{.learning_rate = 0.5f}, job_world(),
                                   {.stage = stage});
    const auto report = optimizer.step(0, {.global = 3, .micro = 1},
                                       [&](const MicroBatch&) { return model.weight.tensor(); });
    CHECK(report.loss == Catch::Approx(1));
    CHECK(report.grad_norm == Catch::Approx(1));
    optimizer.for_each_parameter([](const nn::NamedParameter&, std::span<const float> values) {
      CHECK(values[0] == Catch::Approx(0.5));
    });
  }
}

TEST_CASE("a second backward or skip in a micro-batch is refused, and the step goes on") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, lone_world());
  for (const MicroBatch& micro : optimizer.micro_batches(0, {.global = 2, .micro = 1})) {
    const Tensor loss = model.loss(micro);
    optimizer.backward(loss);
    CHECK_THROWS_WITH(optimizer.backward(loss),
                      ContainsSubstring("backward() was called after the backward() or skip() of "
                                        "this micro-batch"));
    CHECK_THROWS_WITH(optimizer.skip(), ContainsSubstring("skip() was called after the backward"));
  }
  CHECK_FALSE(optimizer.step().skipped);
  CHECK_THROWS_WITH(optimizer.skip(), ContainsSubstring("skip outside of micro_batches"));
}

}  // namespace
}  // namespace tessera::test
