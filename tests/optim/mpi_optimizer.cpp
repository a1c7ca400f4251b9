// Tests the optimizer's interface on several ranks: state, parameter groups, parameters without
// gradient, dropout.
#include <cmath>
#include <utility>

#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/layered_model.h"
#include "tests/support/table_model.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

std::map<std::string, std::vector<float>> whole_state(const dist::World& world, int stage,
                                                      DType dtype, const std::string& name,
                                                      int root) {
  const TinyRun run{.steps = 2};
  models::Gpt model(run.model);
  model.to(dtype);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world,
                                 {.stage = stage, .bucket_bytes = 3000});
  TrainingResult result;
  for (int64_t step = 0; step < run.steps; ++step) {
    train_step(optimizer, tiny_training(run, model), step, result);
  }
  std::map<std::string, std::vector<float>> values;
  for (auto& [parameter, shard] : optimizer.consolidated_state(root)) {
    values[parameter] = shard.values.at(name);
  }
  return values;
}

TEST_CASE("consolidated state: whole on the chosen rank, equal at every stage, empty elsewhere") {
  const dist::World world = job_world();
  const int root = world.size - 1;
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  for (const char* name : {"exp_avg", "exp_avg_sq"}) {
    const auto reference = whole_state(lone_world(), 0, dtype, name, 0);
    CHECK(reference.at("ln_f.bias").size() == 20);
    for (const int stage : {0, 1, 2, 3}) {
      const auto state = whole_state(world, stage, dtype, name, root);
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
  for (const int stage : {2, 3}) {
    models::Gpt model(run.model);
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {.stage = stage});
    TrainingResult result;
    train_step(optimizer, tiny_training(run, model), 0, result);
    const Tensor holders = Tensor::zeros({model.parameter_count()}, DType::i64);
    int64_t* element = holders.values<int64_t>().data();  // the first element of a parameter
    const auto state = optimizer.state();
    for (const auto& [name, parameter, shared, block] : model.named_parameters()) {
      const auto& [range, values] = state.at(name);
      CHECK(std::ssize(values.at("exp_avg")) == range.size());
      REQUIRE((range.begin >= 0 && range.end <= parameter.elements()));
      for (int64_t i = range.begin; i < range.end; ++i) element[i] = 1;
      element += parameter.elements();
    }
    world.communicator->all_reduce(holders, {}).wait();
    CHECK(std::ranges::count(holders.values<int64_t>(), 1) == model.parameter_count());
  }
}

TEST_CASE("groups: with a learning rate of zero, parameters keep their values") {
  const TinyRun run{.steps = 2};
  for (const int stage : {0, 1, 2, 3}) {
    models::Gpt model(run.model);
    optim::ZeroOptimizer optimizer(
        model, optim::AdamW{.learning_rate = 1e-2f}, job_world(),
        {.stage = stage,
         .group_of = [](const auto& named) { return named.name.starts_with("h.0.") ? 1 : 0; },
         .groups = {{.learning_rate = 0.0f}}});
    const Weights before = weights_of(optimizer);
    TrainingResult result;
    for (int64_t step = 0; step < run.steps; ++step) {
      train_step(optimizer, tiny_training(run, model), step, result);
    }
    for (const auto& [name, values] : weights_of(optimizer)) {
      CAPTURE(stage, name);
      CHECK((values == before.at(name)) == name.starts_with("h.0."));
    }
  }
}

TEST_CASE("groups: with a learning rate of zero, a row-sparse table keeps its values") {
  const TableRun run;
  for (const int stage : {0, 3}) {
    TableModel model(run);
    optim::ZeroOptimizer optimizer(
        model, optim::AdamW{.learning_rate = 1e-2f}, job_world(),
        {.stage = stage,
         .group_of = [](const auto& named) { return named.name == "items.weight" ? 1 : 0; },
         .groups = {{.learning_rate = 0.0f}}});
    const Weights before = weights_of(optimizer);
    optimizer.step(0, run.batch, [&](const MicroBatch& micro) { return model.loss(micro); });
    for (const auto& [name, values] : weights_of(optimizer)) {
      CAPTURE(stage, name);
      CHECK((values == before.at(name)) == (name == "items.weight"));
    }
  }
}

// Two linear layers that read the same input. The gradient of one does not depend on the other.
struct Branches : nn::Module {
  Branches() {
    first = add("first", nn::Parameter({12, 40}, nn::Initializer::normal(0.5f)));
    second = add("second", nn::Parameter({30, 40}, nn::Initializer::normal(0.5f)));
  }
  static Tensor squares(const nn::Parameter& weight, const MicroBatch& micro) {
    const auto seed = static_cast<uint64_t>(micro.step * 100 + micro.index);
    const Tensor y = ops::linear(random_tensor({2, 40}, seed), weight, {});
    return ops::mean(ops::mul(y, y));
  }
  nn::Parameter first;
  nn::Parameter second;
};

// The weights and the state of `second`, which only some of the steps use.
struct Trained {
  std::vector<float> weights;
  std::map<std::string, std::vector<float>> state;
  std::vector<std::vector<std::string>> without_gradient;
  bool operator==(const Trained&) const = default;
};

Trained train_second(const optim::UpdateRule& rule, const dist::World& world, int stage,
                     const std::vector<int64_t>& steps, const std::vector<int64_t>& with_second) {
  Branches model;
  optim::ZeroOptimizer optimizer(model, rule, world, {.stage = stage, .bucket_bytes = 8192});
  Trained trained;
  for (const int64_t step : steps) {
    const bool both = std::find(with_second.begin(), with_second.end(), step) != with_second.end();
    const auto report = optimizer.step(step, {.global = 6, .micro = 1}, [&](const auto& micro) {
      const Tensor loss = Branches::squares(model.first, micro);
      return both ? ops::add(loss, Branches::squares(model.second, micro)) : loss;
    });
    trained.without_gradient.push_back(report.without_gradient);
  }
  trained.weights = weights_of(optimizer).at("second");
  auto state = optimizer.consolidated_state(0);
  if (world.rank == 0) trained.state = state.at("second").values;
  return trained;
}

TEST_CASE("a step changes neither the weights nor the state of parameters without gradient") {
  const optim::UpdateRule rules[] = {optim::AdamW{.learning_rate = 1e-2f, .weight_decay = 0.5f},
                                     optim::Adam{.learning_rate = 1e-2f, .weight_decay = 0.5f},
                                     optim::Sgd{.learning_rate = 1e-2f, .momentum = 0.9f,
                                                .weight_decay = 0.5f}};
  using Names = std::vector<std::vector<std::string>>;
  for (const auto& rule : rules) {
    // The reference trains only steps 1 and 3. The other runs also have steps 0, 2 and 4, which do
    // not use `second`. Momentum, decay and Adam's bias correction must still count only steps 1
    // and 3.
    Trained expected = train_second(rule, lone_world(), 0, {1, 3}, {1, 3});
    CHECK(expected.without_gradient == Names{{}, {}});
    // Step 0 reports `second`. Steps 2 and 4 do not report it again.
    expected.without_gradient = {{"second"}, {}, {}, {}, {}};
    if (job_world().rank != 0) expected.state.clear();
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(stage);
      CHECK(train_second(rule, job_world(), stage, {0, 1, 2, 3, 4}, {1, 3}) == expected);
    }
  }
}

TEST_CASE("a gradient in one micro-batch is enough for an update on every rank") {
  const auto run = [](const dist::World& world, int stage) {
    Branches model;
    optim::ZeroOptimizer optimizer(model, optim::Sgd{.learning_rate = 1}, world,
                                   {.stage = stage, .seed = 1});
    const auto report = optimizer.step(0, {.global = 7, .micro = 1}, [&](const auto& micro) {
      const Tensor loss = Branches::squares(model.first, micro);
      return micro.index == 4 ? ops::add(loss, Branches::squares(model.second, micro)) : loss;
    });
    CHECK(report.without_gradient.empty());
    return weights_of(optimizer);
  };
  Branches fresh;
  nn::materialize(fresh, {}, 1);
  const Weights expected = run(lone_world(), 0);
  CHECK(expected.at("second") != weights_of(fresh).at("second"));
  for (const int stage : {0, 1, 2}) CHECK(run(job_world(), stage) == expected);
}

TEST_CASE("a group is checked only with the rules that update its parameters") {
  const optim::UpdateRule plain = optim::Sgd{};  // has no state for a group's momentum
  const optim::UpdateRule adamw = optim::AdamW{};
  const dist::World world = lone_world();
  // Makes an optimizer with a momentum in parameter group 1. If `tables` is true, group 1 consists
  // of the row-sparse tables. If `tables` is false, group 1 consists of all other parameters.
  const auto make = [&](bool tables, const optim::UpdateRule& rule,
                        const optim::UpdateRule& table_rule) {
    TableModel model(TableRun{});
    const auto group_of = [tables](const nn::NamedParameter& named) {
      return (named.parameter.distinct_rows() > 0) == tables ? 1 : 0;
    };
    const optim::ZeroOptimizer optimizer(
        model, rule, world,
        {.table_rule = table_rule, .group_of = group_of, .groups = {{.beta1 = 0.8f}}});
  };
  CHECK_NOTHROW(make(false, adamw, plain));
  CHECK_NOTHROW(make(true, plain, adamw));
  CHECK_THROWS_WITH(make(true, adamw, plain),
                    "table_rule: group 1: sgd: a momentum of 0.8, but "
                    "the rule has no momentum, and so no state for it");
  CHECK_THROWS_WITH(make(false, plain, adamw),
                    ContainsSubstring("optimizer: group 1: sgd: a momentum of 0.8"));
  Branches dense;
  TableModel tables(TableRun{});
  LayeredModel more;
  optim::ZeroOptimizer optimizer(dense, adamw, world, {.table_rule = plain});
  CHECK_THROWS_WITH(optimizer.add_param_group(tables, {.beta1 = 0.8f}),
                    ContainsSubstring("table_rule: group 1: sgd: a momentum of 0.8"));
  CHECK_NOTHROW(optimizer.add_param_group(more, {.beta1 = 0.8f}));
}

TEST_CASE("a loss that is not one f32 number is refused before backward") {
  Branches model;
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, lone_world());
  const Batch batch{.global = 1, .micro = 1};
  const auto batches = optimizer.micro_batches(0, batch);
  const auto first = batches.begin();
  CHECK_THROWS_WITH(optimizer.backward(Tensor::zeros({1, 4})),
                    "backward: the loss is f32 [1, 4], expected one f32 number");
  CHECK_THROWS_WITH(optimizer.backward(Tensor::zeros({}, DType::bf16)),
                    "backward: the loss is bf16 [], expected one f32 number");
  optimizer.backward(Branches::squares(model.first, *first));
  optimizer.step();
  const auto load = [](const MicroBatch&) {};
  CHECK_THROWS_WITH(optimizer.micro_steps(1, batch, load, [] { return Tensor::zeros({2}); }),
                    "backward: the loss is f32 [2], expected one f32 number");
}

TEST_CASE("a schedule's invalid factor is an error, and the step updates nothing") {
  const int stage = GENERATE(0, 2, 3);
  LayeredModel model;
  float factor = 0;
  optim::ZeroOptimizer optimizer(
      model, optim::Sgd{.learning_rate = 0.5f}, job_world(),
      {.stage = stage, .schedule = [&factor](int64_t) { return std::exchange(factor, NAN); }});
  const auto step = [&] {
    return optimizer.step(3, {.global = 4, .micro = 2},
                          [&](const MicroBatch& micro) { return model.loss(micro); });
  };
  const Weights before = weights_of(optimizer);
  for (const float invalid : {NAN, INFINITY, -0.5f}) {
    factor = invalid;
    CHECK_THROWS_WITH(step(), fmt::format("optimizer: the schedule gives step 4 the factor {}, "
                                          "expected a finite number of at least 0",
                                          invalid));
    CHECK(weights_of(optimizer) == before);
  }
  // The schedule is called once: a second call in the same step would return NaN.
  factor = 0.5f;
  CHECK(step().learning_rate == 0.25f);
  CHECK(weights_of(optimizer) != before);
}

/// SGD whose learning rate is divided by the number of updates.
struct Decaying : optim::Sgd {
  UpdateHyper hyper(int64_t step, const optim::GroupOptions& group) const {
    UpdateHyper hyper = Sgd::hyper(step, group);
    hyper.learning_rate /= static_cast<float>(step);
    return hyper;
  }
};

TEST_CASE("a report has the learning rate of its step, also if it depends on the updates so far") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, Decaying{{.learning_rate = 0.5f}}, job_world());
  for (const int64_t step : {0, 1, 2}) {
    const auto report = optimizer.step(step, {.global = 2, .micro = 1},
                                       [&](const MicroBatch& micro) { return model.loss(micro); });
    CHECK(report.learning_rate == 0.5f / static_cast<float>(step + 1));
  }
}

TEST_CASE("dropout depends on the seed, the step and the first sample of the micro-batch") {
  LayeredModel model;
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, job_world(), {.seed = 5});
  for (const int64_t step : {3, 4}) {
    for (const auto& micro : optimizer.micro_batches(step, {.global = 14, .micro = 2})) {
      CHECK(dropout_state().seed == 5);
      CHECK(dropout_state().step == step);
      CHECK(dropout_state().first_sample == 2 * micro.index);
      optimizer.backward(model.loss(micro));
    }
    optimizer.step();
  }
}

TEST_CASE("dropout is for use within a step: a forward before or after one is refused") {
  const TinyRun run{.batch = {.global = 2, .micro = 2}};
  models::Gpt model(run.model);
  nn::materialize(model);
  const Training training = tiny_training(run, model);
  const auto refused = [&] {
    CHECK_THROWS_WITH(training.loss({.samples = 2}),
                      ContainsSubstring("dropout: no step is running"));
  };
  refused();
  {
    optim::ZeroOptimizer optimizer(model, optim::AdamW{}, lone_world());
    refused();
    (void)optimizer.step(0, run.batch, training.loss);
    refused();
    [[maybe_unused]] const auto given_up = optimizer.micro_batches(1, run.batch).begin();
    CHECK(training.loss({.samples = 2}).defined());
  }
  refused();
}

}  // namespace
}  // namespace tessera::test
