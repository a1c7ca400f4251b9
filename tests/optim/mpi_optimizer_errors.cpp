// Tests that the optimizer refuses invalid options, and calls at the wrong time.
#include <cmath>

#include "tests/support/catch.h"
#include "tests/support/tiny_training.h"

namespace tessera::test {
namespace {

using Catch::Matchers::ContainsSubstring;

TEST_CASE("invalid hyper-parameters are refused when they are given") {
  models::Gpt model(TinyRun{}.model);
  const dist::World world = lone_world();
  const auto refused = [&](const optim::UpdateRule& rule, const std::string& text,
                           const optim::GroupOptions& group = {}) {
    CHECK_THROWS_WITH(
        optim::ZeroOptimizer(model, rule, world,
                             {.group_of = [](const auto&) { return 1; }, .groups = {group}}),
        ContainsSubstring(text));
  };
  refused(optim::AdamW{.learning_rate = -1}, "learning rate of -1");
  refused(optim::AdamW{.beta1 = 1}, "first beta or momentum of 1, expected in [0, 1)");
  refused(optim::Adam{.epsilon = std::nanf("")}, "epsilon of nan");
  refused(optim::Sgd{.nesterov = true}, "Nesterov momentum without momentum");
  refused(optim::AdamW{}, "group 1 has a weight decay of -0.5", {.weight_decay = -0.5f});
  refused(optim::Sgd{}, "optimizer: group 1: sgd: a momentum of 0.9", {.beta1 = 0.9f});
  CHECK_THROWS_WITH(optim::ZeroOptimizer(model, optim::AdamW{}, world,
                                         {.table_rule = optim::Sgd{.learning_rate = -1}}),
                    ContainsSubstring("table_rule: group 0 has a learning rate of -1"));
}

TEST_CASE("invalid options are refused, and the error names them") {
  models::Gpt model(TinyRun{}.model);
  const auto refused = [&](const optim::ZeroOptions& options, const std::string& text) {
    CHECK_THROWS_WITH(optim::ZeroOptimizer(model, optim::AdamW{}, lone_world(), options),
                      ContainsSubstring(text));
  };
  refused({.stage = 4}, "stage 4 does not exist, expected 0, 1, 2 or 3");
  refused({.bucket_bytes = 0}, "bucket of 0 bytes");
  refused({.clip = -1}, "clip -1, expected at least 0");
  refused({.grad_shard = DType::f16}, "gradient shards in f16, expected f32 or bf16");
  refused({.loss_scaling = optim::LossScaling{.initial = 3}}, "loss scale 3");
  refused({.group_of = [](const auto&) { return 1; }}, "'wte.weight' is in group 1");
  refused({.groups = {{.learning_rate = 0.5f}}}, "no group_of that says which parameters");
}

TEST_CASE("calls at the wrong time and parameters optimised twice are refused") {
  const TinyRun run;
  models::Gpt model(run.model);
  const int stage = GENERATE(2, 3);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, lone_world(), {.stage = stage});
  CHECK_THROWS_WITH(optimizer.step(), ContainsSubstring("was called without a batch"));
  CHECK_THROWS_WITH(optimizer.backward(Tensor::full({}, 1)), ContainsSubstring("backward outside"));
  CHECK_THROWS_WITH(optimizer.skip(), ContainsSubstring("skip outside of micro_batches"));
  CHECK_THROWS_AS(optimizer.micro_batches(0, {.global = 3, .micro = 2}), InputError);
  CHECK_THROWS_WITH(optimizer.micro_batches(-1, {.global = 2, .micro = 2}),
                    "optimizer: step -1, expected at least 0");
  CHECK_THROWS_WITH(optimizer.micro_steps(-1, {.global = 2, .micro = 2}, {}, {}),
                    "optimizer: step -1, expected at least 0");
  CHECK_THROWS_WITH(optimizer.add_param_group(model, {}), ContainsSubstring("already optimised"));
  CHECK_THROWS_WITH(optim::ZeroOptimizer(model, optim::AdamW{}, lone_world()),
                    ContainsSubstring("'wte.weight' is already optimised"));
}

TEST_CASE("a step with unfinished micro-batches is an error") {
  const TinyRun run{.steps = 1, .batch = {.global = 4, .micro = 2}};
  models::Gpt model(run.model);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, lone_world());
  const auto batches = optimizer.micro_batches(0, run.batch);
  auto it = batches.begin();
  // Reading the iterator changes nothing.
  CHECK((*it).index == 0);
  CHECK((*it).index == (*it).index);
  CHECK((*batches.begin()).index == 0);
  optimizer.backward(tiny_training(run, model).loss(*it));
  CHECK_THROWS_WITH(optimizer.step(),
                    ContainsSubstring("step() was called after 1 of 2 micro-steps"));
  CHECK_THROWS_WITH(optimizer.micro_batches(1, run.batch), "optimizer: step 1 is not finished");
  CHECK_THROWS_WITH(optimizer.micro_steps(1, run.batch, {}, {}),
                    "optimizer: step 1 is not finished");
  models::Gpt other(run.model);
  CHECK_THROWS_WITH(optimizer.add_param_group(other, {}),
                    ContainsSubstring("step 1 is not finished"));
  ++it;
  CHECK_THROWS_WITH(batches.begin(), ContainsSubstring("before the backward of the previous"));
  optimizer.backward(tiny_training(run, model).loss(*it));
  CHECK_THROWS_WITH(batches.begin(),
                    "optimizer: step 1 is not finished; call step() before other micro-batches "
                    "begin");
}

}  // namespace
}  // namespace tessera::test
