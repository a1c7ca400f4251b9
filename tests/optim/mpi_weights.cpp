// Tests the weights of a model under an optimizer. nn::save_weights waits until updated weights
// have arrived, and refuses sharded parameters and row-sparse tables. nn::load_weights and
// nn::materialize are refused. train::save_weights and train::load_weights refuse a model that does
// not have the optimizer's parameters. set_parameters sets the weights, and resets or keeps the
// optimizer's state.
#include "core/ops.h"
#include "nn/layers.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/delayed_communicator.h"
#include "tests/support/table_model.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/tiny_training.h"
#include "train/weights.h"

namespace tessera::test {
namespace {

TEST_CASE("saved weights are those after the step, even if their gather is under way") {
  const TemporaryFolder folder;
  dist::World world = job_world();
  world.communicator = std::make_shared<dist::DelayedCommunicator>(
      world.communicator, std::chrono::nanoseconds{}, std::chrono::milliseconds(100));
  nn::Linear model(32, 32);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{.learning_rate = 1}, world,
                                 {.stage = 2, .bucket_bytes = 1024, .seed = 3});
  (void)optimizer.step(0, {.global = 8, .micro = 1}, [&](const MicroBatch& micro) {
    return ops::mean(model(Tensor::full({4, 32}, 1.0f + static_cast<float>(micro.index))));
  });
  nn::save_weights(folder.path("at_once"), model);
  optimizer.synchronize();
  nn::save_weights(folder.path("later"), model);
  CHECK(folder.read("at_once") == folder.read("later"));
  CHECK_THROWS_WITH(nn::load_weights(folder.path("later"), model),
                    Catch::Matchers::ContainsSubstring("belongs to an optimizer"));
}

TEST_CASE("at stage 3, save_weights and materialize are refused before they gather or allocate") {
  const TemporaryFolder folder;
  nn::Linear model(32, 32);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, job_world(),
                                 {.stage = 3, .bucket_bytes = 1024});
  (void)optimizer.step(0, {.global = 8, .micro = 1}, [&](const MicroBatch&) {
    return ops::mean(model(Tensor::full({4, 32}, 1.0f)));
  });
  const MemoryLedger& ledger = memory_ledger(default_device());
  const int64_t held = ledger.current(Category::parameters);
  CHECK_THROWS_WITH(
      nn::save_weights(folder.path("weights"), model),
      Catch::Matchers::ContainsSubstring("has no values here; under ZeRO stage 3 use "));
  CHECK(folder.entries() == 0);
  CHECK_THROWS_WITH(nn::materialize(model),
                    "materialize: parameter 'weight' belongs to an optimizer");
  CHECK(ledger.current(Category::parameters) == held);
}

TEST_CASE("save_weights of a row-sparse table under an optimizer names train::save_weights") {
  const TemporaryFolder folder;
  for (const int stage : {0, 3}) {
    TableModel model(TableRun{});
    const optim::ZeroOptimizer optimizer(model, optim::Sgd{}, lone_world(), {.stage = stage});
    CHECK_THROWS_WITH(nn::save_weights(folder.path("weights"), model),
                      "save_weights: 'users.weight' is a row-sparse table of an optimizer; use "
                      "train::save_weights");
  }
  CHECK(folder.entries() == 0);
}

void set_other_weights(optim::ZeroOptimizer& optimizer) {
  optimizer.set_parameters(
      [](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
        nn::initialize(nn::Initializer::normal(0.02f), 7, named.name, begin, out);
      });
}

struct Head : nn::Module {
  Head() { add("head", out); }
  nn::Linear out{4, 1};
};

TEST_CASE("train's weights: model and optimizer must have the same parameters") {
  const TemporaryFolder folder;
  const std::string path = folder.path("weights");
  nn::Linear saved(4, 4);
  nn::materialize(saved, {}, 1);
  nn::save_weights(path, saved);
  nn::Linear model(4, 4);
  Head head;
  const dist::World world = job_world();
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {.seed = 3});
  CHECK_THROWS_WITH(train::save_weights(folder.path("new"), head, optimizer, world),
                    "save_weights: parameter 'head.weight' is in the model but not in the "
                    "optimizer; use the optimizer's for_each_parameter");
  CHECK_NOTHROW(train::load_weights(path, model, optimizer));
  set_other_weights(optimizer);
  optimizer.add_param_group(head, {});
  const Weights before = weights_of(optimizer);
  CHECK_THROWS_WITH(train::load_weights(path, model, optimizer),
                    "load_weights: parameter 'head.bias' is in the optimizer but not in the "
                    "model; use the optimizer's set_parameters");
  CHECK(weights_of(optimizer) == before);
  CHECK_THROWS_WITH(train::save_weights(folder.path("new"), model, optimizer, world),
                    "save_weights: parameter 'head.bias' is in the optimizer but not in the "
                    "model; use the optimizer's for_each_parameter");
  CHECK(folder.entries() == 1);
}

TEST_CASE("a source of weights names the tensor that its file lacks") {
  const TemporaryFolder folder;
  const std::string path = folder.path("weights");
  nn::Linear model(4, 4);
  nn::materialize(model);
  nn::save_weights(path, model);
  const nn::WeightsFile weights(path, model);
  std::vector<float> values(4);
  CHECK_THROWS_WITH(weights.source()(nn::NamedParameter{"other", model.weight}, 0, values),
                    path + ": it has no tensor \"other\"");
}

// Calls `before` with the tiny GPT's optimizer, trains two more steps, and returns losses, weights
// and state.
TrainingResult two_more_steps(
    int stage, DType dtype, const dist::World& world,
    const std::function<void(optim::ZeroOptimizer&, const Training&, TrainingResult&)>& before) {
  const TinyRun run;
  models::Gpt model(run.model);
  model.to(dtype);
  const Training training = tiny_training(run, model);
  optim::ZeroOptimizer optimizer(model, training.rule, world,
                                 {.stage = stage, .bucket_bytes = 3000});
  TrainingResult result;
  before(optimizer, training, result);
  result = {};
  for (int64_t step = 2; step < 4; ++step) train_step(optimizer, training, step, result);
  result.weights = weights_of(optimizer);
  for (const auto& [name, shard] : optimizer.consolidated_state()) {
    for (const auto& [kind, values] : shard.values) result.weights[name + kind] = values;
  }
  return result;
}

void train_two_steps(optim::ZeroOptimizer& optimizer, const Training& training,
                     TrainingResult& result) {
  for (int64_t step = 0; step < 2; ++step) train_step(optimizer, training, step, result);
}

optim::ParameterSource source_of(Weights weights) {
  return [weights = std::move(weights)](const nn::NamedParameter& named, int64_t begin,
                                        std::span<float> out) {
    std::copy_n(weights.at(named.name).begin() + begin, out.size(), out.begin());
  };
}

TEST_CASE("set_parameters: the rule's state starts anew, as in a new optimizer", "[cpu]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const auto fresh =
          two_more_steps(stage, dtype, job_world(),
                         [](auto& optimizer, auto&, auto&) { set_other_weights(optimizer); });
      const auto after_training = two_more_steps(
          stage, dtype, job_world(), [](auto& optimizer, const auto& training, auto& result) {
            train_two_steps(optimizer, training, result);
            set_other_weights(optimizer);
          });
      CHECK(after_training == fresh);
    }
  }
}

TEST_CASE("set_parameters: the rule's state is kept on request", "[cpu]") {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    for (const int stage : {0, 1, 2, 3}) {
      CAPTURE(dtype_name(dtype), stage);
      const auto unchanged = two_more_steps(stage, dtype, job_world(), train_two_steps);
      const auto set_again = two_more_steps(
          stage, dtype, job_world(), [](auto& optimizer, const auto& training, auto& result) {
            train_two_steps(optimizer, training, result);
            const Weights weights = weights_of(optimizer);
            set_other_weights(optimizer);  // resets the state
            CHECK(weights_of(optimizer) != weights);
            optimizer.set_parameters(source_of(weights));
          });
      const auto kept = two_more_steps(
          stage, dtype, job_world(), [](auto& optimizer, const auto& training, auto& result) {
            train_two_steps(optimizer, training, result);
            optimizer.set_parameters(source_of(weights_of(optimizer)), optim::RuleState::keep);
          });
      CHECK(kept == unchanged);
      CHECK(set_again.losses[0] == unchanged.losses[0]);
      CHECK(set_again.weights != unchanged.weights);
    }
  }
}

TEST_CASE("set_parameters: refused within a step") {
  const TinyRun run;
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, lone_world());
  const auto batches = optimizer.micro_batches(0, run.batch);
  [[maybe_unused]] const auto first = batches.begin();
  CHECK_THROWS_WITH(set_other_weights(optimizer),
                    Catch::Matchers::ContainsSubstring("set_parameters: step 1 is not finished"));
}

}  // namespace
}  // namespace tessera::test
