// Tests batch norms on several ranks: weights and running statistics have equal bits for any number
// of ranks, at any stage and bucket size, with and without overlap. Also tests synchronized norms,
// and models and options that are refused.
#include "core/autograd.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/devices.h"
#include "tests/support/tensors.h"
#include "tests/support/tiny_vision.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

struct Variant {
  DType dtype = DType::f32;
  int stage = 2;
  int64_t bucket_bytes = 6000;
  bool overlap = true;
};

optim::ZeroOptions options_of(const Variant& variant) {
  return {.stage = variant.stage,
          .bucket_bytes = variant.bucket_bytes,
          .overlap = variant.overlap,
          .seed = 3};
}

void check_equal(const TrainingResult& result, const TrainingResult& expected) {
  CHECK(result.losses == expected.losses);
  CHECK(result.grad_norms == expected.grad_norms);
  CHECK(result.skipped == expected.skipped);
  CHECK(result.weights == expected.weights);
}

TEST_CASE("equal bits with batch norms, over ranks, precisions, stages, buckets and overlap") {
  const Variant variants[] = {
      {DType::f32, 0, 64, false},  {DType::f32, 1, 1 << 24, true}, {DType::f32, 2, 6000, true},
      {DType::f32, 3, 6000, true}, {DType::bf16, 2, 64, true},     {DType::bf16, 3, 1 << 24, false},
      {DType::f16, 1, 6000, true}, {DType::f16, 3, 64, true},
  };
  std::map<DType, TrainingResult> references;
  for (const Variant& variant : variants) {
    CAPTURE(dtype_name(variant.dtype), variant.stage, variant.bucket_bytes, variant.overlap);
    // There are 7 micro-batches. So with 2 to 6 ranks, some ranks have none in the last micro-step.
    TinyVision run;
    run.dtype = variant.dtype;
    if (!references.contains(variant.dtype)) {
      references[variant.dtype] = train_tiny(run, lone_world(), options_of({variant.dtype, 0}));
    }
    check_equal(train_tiny(run, job_world(), options_of(variant)), references[variant.dtype]);
  }
  const TrainingResult& f32 = references[DType::f32];
  CHECK(f32.losses.back() < f32.losses.front());
  CHECK(f32.weights.at("bn1.mean") != std::vector<float>(8, 0.0f));
  CHECK(f32.weights.at("layer2.0.downsample.1.variance") != std::vector<float>(16, 1.0f));
}

// Compares with one process that runs the forwards without an optimizer, so that the norms
// themselves accumulate the statistics.
TEST_CASE("running statistics take each micro-batch in its order") {
  const TinyVision run{.steps = 1};
  const TrainingResult result = train_tiny(run, job_world(), {.stage = 1, .seed = 3});
  models::ResNet model(run.model);
  nn::materialize(model, default_device(), 3);
  const NoGrad no_grad;
  for (int64_t m = 0; m < run.batch.micro_batches(); ++m) {
    model(tiny_images(run, {.index = m, .first_sample = 2 * m, .samples = 2}).images);
  }
  for (const auto& [name, values] : statistics_of(model)) {
    CAPTURE(name);
    const std::vector<float>& measured = result.weights.at(name);
    REQUIRE(measured.size() == values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(measured[i] == Catch::Approx(values[i]).epsilon(1e-5).margin(1e-6));
    }
  }
}

TEST_CASE("micro-batches without data leave no trace in running statistics") {
  const dist::World world = job_world();
  const TinyVision run{.steps = 2};
  const auto train_without = [&](const dist::World& on) {
    models::ResNet model(run.model);
    Training training = tiny_training(run, model);
    const auto loss = training.loss;
    training.loss = [loss](const MicroBatch& micro) {
      return micro.index % 3 == 1 ? Tensor{} : loss(micro);
    };
    TrainingResult result = train(model, training, on, {.stage = 2, .seed = 3});
    result.weights.merge(statistics_of(model));
    return result;
  };
  const TrainingResult expected = train_without(lone_world());
  check_equal(train_without(world), expected);
  CHECK(expected.weights != train_tiny(run, world, {.stage = 2, .seed = 3}).weights);
}

TEST_CASE("a step that overflows leaves running statistics as they were") {
  const TinyVision run{.steps = 1, .dtype = DType::f16};
  models::ResNet model(run.model);
  model.to(DType::f16);
  Training training = tiny_training(run, model);
  optim::ZeroOptimizer optimizer(model, training.rule, job_world(),
                                 {.loss_scaling = optim::LossScaling{.initial = 0x1p100f}});
  const Weights before = statistics_of(model);
  TrainingResult result;
  train_step(optimizer, training, 0, result);
  CHECK(result.skipped[0]);
  CHECK(statistics_of(model) == before);
}

TEST_CASE("statistics keep their values while an optimizer exists, and after it") {
  const TinyVision run{.steps = 1};
  models::ResNet model(run.model);
  nn::materialize(model, default_device(), 3);
  for (const auto& [name, statistics] : model.named_statistics()) {
    statistics->mean.copy_from(Tensor::full(statistics->mean.shape(), 7));
  }
  const Weights before = statistics_of(model);
  CHECK(before.at("bn1.mean") == std::vector<float>(8, 7.0f));
  {
    optim::ZeroOptimizer optimizer(model, optim::Sgd{}, job_world());
    CHECK(statistics_of(model) == before);
    CHECK_THROWS_WITH(optim::ZeroOptimizer(model, optim::Sgd{}, job_world()),
                      ContainsSubstring("already optimised"));
  }
  CHECK(statistics_of(model) == before);
  const NoGrad no_grad;
  model(tiny_images(run, {.samples = 2}).images);  // no optimizer: forward updates statistics
  CHECK(statistics_of(model) != before);
}

// The optimizer records one mean and variance per batch norm and micro-batch. A forward that skips
// the norm would leave the values of an earlier micro-batch. A forward that uses the norm twice
// would leave only the values of the second use.
TEST_CASE("a batch norm that a forward does not use exactly once is refused") {
  class Norms : public nn::Module {
   public:
    Norms() : first_(2), second_(2) {
      add("first", first_);
      add("second", second_);
    }
    Tensor loss(int uses) {
      Tensor x = first_(Tensor::from<float>({2, 2}, {1, 2, 3, 5}));
      for (int i = 0; i < uses; ++i) x = second_(x);
      return ops::sum(x);
    }

   private:
    nn::BatchNorm2d first_;
    nn::BatchNorm2d second_;
  };
  const dist::World world = job_world();
  for (const int uses : {0, 2}) {
    Norms model;
    optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world);
    const Batch batch{.global = 2 * world.size, .micro = 2};
    for (const MicroBatch& micro : optimizer.micro_batches(0, batch)) {
      CHECK(micro.samples == 2);
      const Tensor loss = model.loss(uses);
      CHECK_THROWS_WITH(
          optimizer.backward(loss),
          ContainsSubstring(fmt::format("batch norm 'second' {} times in training mode", uses)));
      break;
    }
  }
}

TEST_CASE("a batch norm in evaluation mode under an optimizer is refused") {
  nn::BatchNorm2d norm(2);
  const dist::World world = job_world();
  optim::ZeroOptimizer optimizer(norm, optim::Sgd{}, world);
  norm.eval();
  const Batch batch{.global = 2 * world.size, .micro = 2};
  for (const MicroBatch& micro : optimizer.micro_batches(0, batch)) {
    CHECK(micro.samples == 2);
    const Tensor loss = ops::sum(norm(Tensor::from<float>({2, 2}, {1, 2, 3, 5})));
    CHECK_THROWS_WITH(optimizer.backward(loss),
                      ContainsSubstring("0 times in training mode") && ContainsSubstring("frozen"));
    break;
  }
}

/// Two linear layers and four batch norms. The second and the third norm are frozen.
class PartlyFrozen : public nn::Module {
 public:
  PartlyFrozen() {
    add("in", in_);
    add("first", first_);
    add("second", second_);
    add("third", third_);
    add("out", out_);
    add("last", last_);
    for (const nn::BatchNorm2d* norm : {&second_, &third_}) {
      norm->weight.set_trainable(false);
      norm->bias.set_trainable(false);
    }
  }
  /// If `by_hand` is true, a shift and a scaling replace the third norm, and compute the same.
  Tensor loss(const MicroBatch& micro, bool by_hand = false) {
    const auto seed = static_cast<uint64_t>(100 * micro.step + micro.index);
    Tensor x = second_(first_(in_(random_tensor({micro.samples, 4}, seed))));
    // After set_statistics() and evaluate(), the norm has mean 1, variance 3 and epsilon 1, so it
    // computes (x - 1) / 2.
    x = by_hand ? ops::scale(ops::add(x, -1.0f), 0.5f) : third_(x);
    return ops::mse_loss(last_(out_(x)), random_tensor({micro.samples, 4}, seed + 50));
  }
  void evaluate() {
    second_.eval();
    third_.eval();
  }
  void set_statistics() {
    const auto statistics = third_.named_statistics()[0].statistics;
    statistics->mean.copy_from(Tensor::full({4}, 1));
    statistics->variance.copy_from(Tensor::full({4}, 3));
  }

 private:
  nn::Linear in_{4, 4}, out_{4, 4};
  nn::BatchNorm2d first_{4}, second_{4}, third_{4, {.epsilon = 1}}, last_{4};
};

TrainingResult train_partly_frozen(const dist::World& world, const optim::ZeroOptions& options,
                                   bool by_hand = false) {
  PartlyFrozen model;
  nn::materialize(model, default_device(), 3);
  model.set_statistics();
  model.evaluate();
  Training training{.loss = [&](const MicroBatch& micro) { return model.loss(micro, by_hand); }};
  training.rule = optim::Sgd{.learning_rate = 0.1f};
  training.batch = {.global = 20, .micro = 4};
  TrainingResult result = train(model, training, world, options);
  result.weights.merge(statistics_of(model));
  return result;
}

TEST_CASE("frozen batch norms in evaluation mode keep their statistics, and other norms learn") {
  const TrainingResult expected = train_partly_frozen(lone_world(), {.stage = 0});
  CHECK(expected.weights.at("third.mean") == std::vector<float>(4, 1.0f));
  CHECK(expected.weights.at("third.variance") == std::vector<float>(4, 3.0f));
  CHECK(expected.weights.at("second.mean") == std::vector<float>(4, 0.0f));
  CHECK(expected.weights.at("second.variance") == std::vector<float>(4, 1.0f));
  CHECK(expected.weights.at("first.mean") != std::vector<float>(4, 0.0f));
  CHECK(expected.weights.at("last.mean") != std::vector<float>(4, 0.0f));
  for (const int stage : {0, 3}) {
    CAPTURE(stage);
    check_equal(train_partly_frozen(job_world(), {.stage = stage}), expected);
  }
  const TrainingResult by_hand = train_partly_frozen(lone_world(), {.stage = 3}, true);
  for (const auto& [name, values] : expected.weights) {
    CAPTURE(name);
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(by_hand.weights.at(name)[i] == Catch::Approx(values[i]).epsilon(1e-3).margin(1e-4));
    }
  }
}

TEST_CASE("a frozen batch norm that leaves evaluation mode within a step is refused") {
  PartlyFrozen model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, job_world());
  model.evaluate();
  const auto batches = optimizer.micro_batches(0, {.global = 8, .micro = 2});
  const auto first = batches.begin();
  model.train();
  CHECK_THROWS_WITH(optimizer.backward(model.loss(*first)),
                    ContainsSubstring("'second' was in evaluation mode when the step began"));
}

TrainingResult train_synchronized(const dist::World& world, optim::ZeroOptions options,
                                  DType dtype = DType::f32) {
  TinyVision run;
  run.dtype = dtype;
  run.batch = {.global = 12 * world.size, .micro = 12};
  options.sync_batch_norm = true;
  return train_tiny(run, world, std::move(options));
}

TEST_CASE("synchronized batch norms: equal bits over stage, bucket and overlap") {
  const dist::World world = job_world();
  const TrainingResult expected = train_synchronized(world, options_of({DType::f32, 0, 1 << 24}));
  for (const int stage : {1, 2, 3}) {
    CAPTURE(stage);
    check_equal(train_synchronized(world, options_of({DType::f32, stage, 64, stage != 2})),
                expected);
  }
  const TrainingResult bf16 = train_synchronized(world, options_of({DType::bf16, 0}), DType::bf16);
  check_equal(train_synchronized(world, options_of({DType::bf16, 3, 64}), DType::bf16), bf16);
}

TEST_CASE("synchronized batch norms normalise over the batches of all ranks") {
  const dist::World world = job_world();
  TinyVision one;
  one.batch = {.global = 12 * world.size, .micro = 12 * world.size};
  const TrainingResult whole = train_tiny(one, lone_world(), {.seed = 3});
  const TrainingResult shared = train_synchronized(world, {.seed = 3});
  for (size_t i = 0; i < whole.losses.size(); ++i) {
    CHECK(shared.losses[i] == Catch::Approx(whole.losses[i]).epsilon(1e-3));
  }
  for (const auto& [name, values] : whole.weights) {
    if (!name.ends_with(".variance")) continue;
    CAPTURE(name);
    for (size_t i = 0; i < values.size(); ++i) {
      CHECK(shared.weights.at(name)[i] == Catch::Approx(values[i]).epsilon(1e-2));
    }
  }
}

TEST_CASE("synchronized batch norms: several micro-batches on a rank, or none, are refused") {
  const dist::World world = job_world();
  const TinyVision run;
  models::ResNet model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {.sync_batch_norm = true});
  CHECK_THROWS_WITH(
      optimizer.micro_batches(0, {.global = 4 * world.size, .micro = 2}),
      ContainsSubstring("expected one for each rank: use micro-batches of 4 samples"));
  const Batch batch{.global = 2 * world.size, .micro = 2};
  for (const MicroBatch& micro : optimizer.micro_batches(0, batch)) {
    CHECK(micro.samples == 2);
    CHECK_THROWS_WITH(optimizer.skip(), ContainsSubstring("without data"));
    break;
  }
  models::ResNet other(run.model);
  optim::ZeroOptimizer second(other, optim::Sgd{}, world, {.sync_batch_norm = true});
  CHECK_THROWS_WITH(second.micro_steps(
                        0, batch, [](const MicroBatch&) {}, [] { return Tensor(); }),
                    ContainsSubstring("without data"));
}

}  // namespace
}  // namespace tessera::test
