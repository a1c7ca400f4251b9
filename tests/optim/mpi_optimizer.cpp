// The optimizer's interface over ranks: state, groups, parameters added later, misuse.
#include <cmath>

#include "optim/plan.h"
#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

void train(optim::ZeroOptimizer& optimizer, models::Gpt& model, const TinyRun& run) {
  for (int64_t step = 0; step < run.steps; ++step) {
    for (const auto& micro : optimizer.micro_batches(step, run.batch)) {
      const auto [tokens, targets] = tiny_batch(run, micro);
      optimizer.backward(model.loss(tokens, targets));
    }
    optimizer.step();
  }
  optimizer.synchronize();
}

std::map<std::string, std::vector<float>> whole_state(const dist::World& world, int stage,
                                                      const std::string& name, int root) {
  const TinyRun run{.steps = 2};
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world,
                                 {.stage = stage, .bucket_bytes = 3000});
  train(optimizer, model, run);
  std::map<std::string, std::vector<float>> values;
  for (auto& [parameter, shard] : optimizer.consolidated_state(root)) {
    values[parameter] = shard.values.at(name);
  }
  return values;
}

TEST_CASE("consolidated state: whole on the chosen rank, equal at every stage, empty elsewhere") {
  const dist::World world = job_world();
  const int root = world.size - 1;
  for (const char* name : {"exp_avg", "exp_avg_sq"}) {
    const auto reference = whole_state(lone_world(), 0, name, 0);
    CHECK(reference.at("ln_f.bias").size() == 20);
    for (const int stage : {0, 1, 2}) {
      const auto state = whole_state(world, stage, name, root);
      if (world.rank == root) {
        CHECK(state == reference);
      } else {
        CHECK(state.empty());
      }
    }
  }
}

TEST_CASE("own state: the ranges of all ranks cover every parameter once") {
  const TinyRun run{.steps = 1};
  const dist::World world = job_world();
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = 2});
  train(optimizer, model, run);
  int64_t elements = 0;
  for (const auto& [name, shard] : optimizer.state()) {
    CHECK(static_cast<int64_t>(shard.values.at("exp_avg").size()) == shard.range.size());
    elements += shard.range.size();
  }
  Tensor total = Tensor::from<int64_t>({1}, {elements});
  world.communicator->all_reduce(total, {}).wait();
  CHECK(total.data<int64_t>()[0] == model.parameter_count());
}

TEST_CASE("groups: a learning rate of zero keeps its parameters") {
  const TinyRun run{.steps = 2};
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(
      model, optim::AdamW{.learning_rate = 1e-2f}, job_world(),
      {.group_of = [](const auto& named) { return named.name.starts_with("h.0.") ? 1 : 0; },
       .groups = {{.learning_rate = 0.0f}}});
  const auto before = weights_of(model);
  train(optimizer, model, run);
  for (const auto& [name, values] : weights_of(model)) {
    CAPTURE(name);
    CHECK((values == before.at(name)) == name.starts_with("h.0."));
  }
}

// Two linears, of which the second joins the optimizer later.
struct TwoLinears : nn::Module {
  TwoLinears() {
    first = add("first", nn::Parameter({3, 4}, nn::Initializer::normal(0.5f)));
    second = add("second", nn::Parameter({2, 3}, nn::Initializer::normal(0.5f)));
  }
  nn::Parameter first;
  nn::Parameter second;
};
struct One : nn::Module {
  explicit One(const nn::Parameter& parameter) { add("first", parameter); }
};
struct Other : nn::Module {
  explicit Other(const nn::Parameter& parameter) { add("second", parameter); }
};

std::vector<float> train_two(const dist::World& world, int stage) {
  TwoLinears both;
  One one(both.first);
  Other other(both.second);
  nn::materialize(both);
  optim::ZeroOptimizer optimizer(one, optim::Sgd{.learning_rate = 0.1f, .momentum = 0.9f}, world,
                                 {.stage = stage});
  for (int64_t step = 0; step < 4; ++step) {
    if (step == 2) optimizer.add_parameters(other, {.learning_rate = 0.05f});
    for (const auto& micro : optimizer.micro_batches(step, {.global = 6, .micro = 1})) {
      Tensor x = Tensor::full({1, 4}, 0.5f + 0.1f * static_cast<float>(micro.index));
      Tensor y = ops::linear(ops::linear(x, both.first, {}), both.second, {});
      optimizer.backward(ops::mean(ops::mul(y, y)));
    }
    optimizer.step();
  }
  optimizer.synchronize();
  std::vector<float> values;
  for (const auto& [name, weights] : weights_of(both)) {
    values.insert(values.end(), weights.begin(), weights.end());
  }
  return values;
}

TEST_CASE("parameters added later train with their own group, at every stage alike") {
  const auto reference = train_two(lone_world(), 0);
  for (const int stage : {0, 1, 2}) CHECK(train_two(job_world(), stage) == reference);
}

TEST_CASE("parameters that a backward does not reach get zeros, not the last gradient") {
  TwoLinears both;
  optim::ZeroOptimizer optimizer(both, optim::Sgd{.learning_rate = 1}, job_world());
  std::vector<float> second;
  for (int64_t step = 0; step < 2; ++step) {
    for (const auto& micro : optimizer.micro_batches(step, {.global = 6, .micro = 1})) {
      Tensor y = ops::linear(Tensor::full({1, 4}, 1.0f), both.first, {});
      if (micro.step == 0) y = ops::linear(y, both.second, {});
      optimizer.backward(ops::mean(y));
    }
    optimizer.step();
    optimizer.synchronize();
    if (step == 0) second = weights_of(both).at("second");
  }
  CHECK(weights_of(both).at("second") == second);
}

TEST_CASE("hyper-parameters that make no sense are refused when they are given") {
  models::Gpt model(TinyRun{}.model);
  const dist::World world = lone_world();
  const auto refused = [&](const optim::UpdateRule& rule, const std::string& text,
                           const optim::GroupOptions& group = {}) {
    CHECK_THROWS_WITH(optim::ZeroOptimizer(model, rule, world, {.groups = {group}}),
                      Catch::Matchers::ContainsSubstring(text));
  };
  refused(optim::AdamW{.learning_rate = -1}, "learning rate of -1");
  refused(optim::AdamW{.beta1 = 1}, "first beta or momentum of 1, expected in [0, 1)");
  refused(optim::Adam{.epsilon = std::nanf("")}, "epsilon of nan");
  refused(optim::Sgd{.nesterov = true}, "Nesterov momentum without momentum");
  refused(optim::AdamW{}, "group 1 has a weight decay of -0.5", {.weight_decay = -0.5f});
}

TEST_CASE("misuse is refused by name") {
  const TinyRun run;
  models::Gpt model(run.model);
  const dist::World world = lone_world();
  CHECK_THROWS_WITH(optim::ZeroOptimizer(model, optim::AdamW{}, world, {.stage = 3}),
                    Catch::Matchers::ContainsSubstring("stage 3 is not available yet"));
  CHECK_THROWS_AS(optim::ZeroOptimizer(model, optim::AdamW{}, world, {.stage = 4}), InputError);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world);
  CHECK_THROWS_AS(optimizer.step(), Error);
  CHECK_THROWS_AS(optimizer.micro_batches(0, {.global = 3, .micro = 2}), InputError);
  CHECK_THROWS_WITH(optimizer.add_parameters(model, {}),
                    Catch::Matchers::ContainsSubstring("already optimised"));
}

}  // namespace
}  // namespace tessera::test
