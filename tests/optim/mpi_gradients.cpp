// Tests access to a step's summed gradients between the last backward and step(): by parameter,
// with their norms, at every stage and in every precision.
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/layered_model.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

struct Gradients {
  Weights values;
  std::map<std::string, float> norms;
  float grad_norm = 0;
  Weights weights;  // after the step

  bool operator==(const Gradients&) const = default;
};

void run_micro_batches(optim::ZeroOptimizer& optimizer, const Training& training, int64_t step) {
  for (const auto& micro : optimizer.micro_batches(step, training.batch)) {
    optimizer.backward(training.loss(micro));
  }
}

// Returns the gradients of a second step, when the weights are no longer the initial ones.
Gradients gradients_of(const TinyRun& run, const dist::World& world,
                       const optim::ZeroOptions& options) {
  models::Gpt model(run.model);
  model.to(run.dtype);
  const Training training = tiny_training(run, model);
  optim::ZeroOptimizer optimizer(model, training.rule, world, options);
  TrainingResult first;
  train_step(optimizer, training, 0, first);
  run_micro_batches(optimizer, training, 1);
  Gradients result;
  result.norms = optimizer.gradient_norms();
  for (const auto& named : model.named_parameters()) {
    const Tensor gradient = optimizer.gradient(named.name);
    CHECK(gradient.shape() == named.parameter.shape());
    CHECK(gradient.dtype() == DType::f32);
    const auto values = gradient.values<float>();
    result.values[named.name].assign(values.begin(), values.end());
  }
  CHECK(optimizer.gradient_norms() == result.norms);  // asking again changes nothing
  result.grad_norm = optimizer.step().grad_norm;
  result.weights = weights_of(optimizer);
  return result;
}

double norm_of(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) sum += double{value} * value;
  return std::sqrt(sum);
}

TEST_CASE("gradients and norms by name: one rank's bits at every stage and precision") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    for (const DType grad_shard : {DType::f32, DType::bf16}) {
      if (dtype == DType::f32 && grad_shard == DType::bf16) continue;
      const TinyRun run{.batch = {.global = 26, .micro = 2}, .dtype = dtype};
      const auto options = [&](int stage) {
        return optim::ZeroOptions{
            .stage = stage, .bucket_bytes = 3000, .clip = 0.1f, .grad_shard = grad_shard};
      };
      const Gradients expected = gradients_of(run, lone_world(), options(0));
      for (const int stage : {0, 1, 2, 3}) {
        CAPTURE(dtype_name(dtype), dtype_name(grad_shard), stage);
        CHECK(gradients_of(run, job_world(), options(stage)) == expected);
      }
    }
  }
}

TEST_CASE("norms by name are those of the gradients, and together the step's, before clipping") {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    const TinyRun run{.dtype = dtype};
    const Gradients clipped = gradients_of(run, job_world(), {.stage = 2, .clip = 0.01f});
    double squares = 0;
    for (const auto& [name, values] : clipped.values) {
      CAPTURE(dtype_name(dtype), name);
      CHECK(clipped.norms.at(name) == Catch::Approx(norm_of(values)).epsilon(1e-6));
      squares += double{clipped.norms.at(name)} * clipped.norms.at(name);
    }
    CHECK(clipped.grad_norm == Catch::Approx(std::sqrt(squares)).epsilon(1e-5));
    CHECK(clipped.grad_norm > 0.01f);
  }
}

TEST_CASE("f16: gradients are those of the loss, not of the scaled one") {
  const Gradients f32 = gradients_of({.dtype = DType::f32}, job_world(), {.stage = 2});
  for (const float scale : {1024.0f, 4096.0f}) {
    const Gradients f16 =
        gradients_of({.dtype = DType::f16}, job_world(),
                     {.stage = 3, .loss_scaling = optim::LossScaling{.initial = scale}});
    CHECK(f16.grad_norm == Catch::Approx(f32.grad_norm).epsilon(0.02));
    for (const auto& [name, norm] : f32.norms) {
      CAPTURE(scale, name);
      CHECK(f16.norms.at(name) == Catch::Approx(norm).epsilon(0.05).margin(1e-3));
    }
  }
}

TEST_CASE("a plain update is the group's rate times the schedule's factor times the gradient") {
  constexpr int64_t step = 3;
  for (const int stage : {0, 3}) {
    LayeredModel model;
    optim::ZeroOptimizer optimizer(
        model, optim::Sgd{.learning_rate = 0.5f}, job_world(),
        {.stage = stage,
         .schedule = [](int64_t at) { return at == step ? 0.5f : 0.25f; },
         .group_of = [](const auto& named) { return named.name.ends_with("bias") ? 1 : 0; },
         .groups = {{.learning_rate = 0.25f}}});
    const Weights before = weights_of(optimizer);
    const Training training{.loss = [&](const auto& micro) { return model.loss(micro); }};
    run_micro_batches(optimizer, training, step);
    std::map<std::string, Tensor> gradients;
    for (const auto& [name, values] : before) gradients[name] = optimizer.gradient(name);
    CHECK(optimizer.step().learning_rate == 0.25f);  // the rule's rate times the factor
    const Weights after = weights_of(optimizer);
    for (const auto& [name, gradient] : gradients) {
      const float rate = name.ends_with("bias") ? 0.125f : 0.25f;
      int64_t wrong = 0;
      for (size_t i = 0; i < before.at(name).size(); ++i) {
        const float expected = before.at(name)[i] - rate * gradient.values<float>()[i];
        wrong += after.at(name)[i] == expected ? 0 : 1;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("a gradient to which no micro-batch contributes is zero") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 3});
  const Training training{.loss = [&](const auto& micro) { return model.loss(micro, {1}); }};
  run_micro_batches(optimizer, training, 0);
  CHECK(optimizer.gradient_norms().at("0.weight") == 0);
  CHECK(optimizer.gradient_norms().at("1.weight") > 0);
  const Tensor unreached = optimizer.gradient("2.bias");
  for (const float value : unreached.values<float>()) CHECK(value == 0);
}

// A model of one weight, whose gradient is -0.
class NegativeZero : public nn::Module {
 public:
  NegativeZero() { add("weight", weight_); }
  Tensor loss() const { return ops::mean(ops::mul(weight_, Tensor::full({1}, -0.0f))); }

 private:
  nn::Parameter weight_{{1}, nn::Initializer::ones()};
};

TEST_CASE("a gradient of -0 becomes +0, also on a single rank") {
  for (const auto& world : {lone_world(), job_world()}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(world.size, stage);
      NegativeZero model;
      optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {.stage = stage});
      Training training{.loss = [&](const auto&) { return model.loss(); }};
      training.batch = {.global = 1, .micro = 1};
      run_micro_batches(optimizer, training, 0);
      const float gradient = optimizer.gradient("weight").item();
      CHECK(gradient == 0);
      CHECK_FALSE(std::signbit(gradient));
    }
  }
}

TEST_CASE("the gradient of a shared parameter is found by each of its names") {
  class Shared : public nn::Module {
   public:
    Shared() {
      add("first", weight_);
      add("second", weight_);
    }
    Tensor loss() const { return ops::sum(ops::mul(weight_, Tensor::full({1}, 2))); }

   private:
    nn::Parameter weight_{{1}, nn::Initializer::ones()};
  };
  Shared model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, job_world(), {.stage = 2});
  Training training{.loss = [&](const auto&) { return model.loss(); }};
  training.batch = {.global = 2, .micro = 1};
  run_micro_batches(optimizer, training, 0);
  CHECK(optimizer.gradient("first").item() == 2);
  CHECK(optimizer.gradient("second").item() == 2);
}

TEST_CASE("asking for gradients at a wrong time or by a wrong name is refused") {
  LayeredModel model;
  model.layer(0).weight.set_trainable(false);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.stage = 2});
  const auto refused = [&] {
    CHECK_THROWS_WITH(
        optimizer.gradient("1.weight"),
        ContainsSubstring("called for '1.weight' at the wrong time, expected between"));
    CHECK_THROWS_WITH(optimizer.gradient_norms(),
                      ContainsSubstring("called at the wrong time, expected between"));
  };
  refused();
  const Training training{.loss = [&](const auto& micro) {
    refused();
    return model.loss(micro);
  }};
  run_micro_batches(optimizer, training, 0);
  CHECK_THROWS_WITH(optimizer.gradient("3.weight"),
                    ContainsSubstring("there is no parameter '3.weight'"));
  CHECK_THROWS_WITH(optimizer.gradient("0.weight"),
                    ContainsSubstring("'0.weight' is frozen, so it has no gradient"));
  CHECK(optimizer.gradient_norms().count("0.weight") == 0);
  optimizer.step();
  refused();
}

}  // namespace
}  // namespace tessera::test
