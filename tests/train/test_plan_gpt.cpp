#include "train/plan/plan_gpt.h"

#include "core/context.h"
#include "models/gpt/gpt_memory.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::train;
using Catch::Approx;

TEST_CASE("a GPT's parameters are known without building it") {
  for (const int64_t layers : {1, 2, 11}) {
    const models::GptConfig config{
        .layers = layers, .heads = 2, .width = 6, .context = 5, .vocab = 7};
    models::Gpt model(config);
    model.to(DType::f16);
    const auto built = optim::plan_parameters(model);
    const auto listed = gpt_parameters(config, DType::f16);
    REQUIRE(listed.size() == built.size());
    CHECK(parameter_elements(listed) == model.parameter_count());
    for (size_t i = 0; i < built.size(); ++i) {
      INFO(built[i].name);
      CHECK(listed[i].name == built[i].name);
      CHECK(listed[i].elements == built[i].elements);
      CHECK(listed[i].shared == built[i].shared);
      CHECK(listed[i].block == built[i].block);
      CHECK(listed[i].dtype == built[i].dtype);
      CHECK(listed[i].trainable == built[i].trainable);
    }
  }
}

TEST_CASE("a plan has room for the workspace of an evaluation") {
  const auto planned = [](const models::GptConfig& config, bool evaluates) {
    optim::Plan plan;
    add_activations(plan, config, DType::f32, 2, {});
    const int64_t activations = plan.activations.value();
    if (evaluates) add_evaluation(plan, config, DType::f32, 2, {});
    CHECK(plan.activations == activations);
    return plan.workspace.value();
  };
  const test::ThreadCountRestorer restore;
  set_thread_count(1);  // attention needs a workspace for each thread
  // A step keeps all logits as activations. An evaluation has them in workspace: 32 rows of 1024
  // logits, 4 bytes each.
  models::GptConfig config{.layers = 2, .heads = 2, .width = 8, .context = 16, .vocab = 1024};
  CHECK(planned(config, false) < 32 * 1024 * 4);
  CHECK(planned(config, true) >= 32 * 1024 * 4);
  CHECK(planned(config, true) ==
        models::gpt_evaluation_memory(config, DType::f32, 2, 16, {}).workspace);
  // With few logits, the step's backward needs the most workspace.
  config.vocab = 5;
  CHECK(planned(config, true) == planned(config, false));

  optim::Plan unknown;
  add_evaluation(unknown, config, DType::f32, 2, {});
  CHECK_FALSE(unknown.workspace.has_value());
}

TEST_CASE("operations of a micro-batch, derived by hand") {
  // Parameters without the position embeddings, 1840 in total:
  //   2 layers     2 x (12 x 8^2 + 13 x 8) = 2 x 872
  //   output head  10 x 8 = 80
  //   last norm    2 x 8 = 16
  // Each token takes 6 operations per parameter. Attention takes 768 more operations per token:
  // 12 x layers x context x width = 12 x 2 x 4 x 8. The micro-batch has 3 x 4 = 12 tokens.
  models::GptConfig config{.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 10};
  CHECK(gpt_work(config, 3, DType::f32).flops == Approx(12 * (6 * 1840 + 768)));
  CHECK(gpt_work(config, 3, DType::f32).recomputed_flops == 0);
  // With recompute, the layers run forward twice. Per token, the second forward takes 2 operations
  // for each of the layers' 2 x 872 = 1744 parameters. Attention adds 768 / 3 = 256 operations.
  config.recompute = true;
  CHECK(gpt_work(config, 3, DType::f32).recomputed_flops == Approx(12 * (2 * 1744 + 256)));
  CHECK(gpt_work(config, 3, DType::bf16).flops == gpt_work(config, 3, DType::f32).flops);
  CHECK(gpt_work(config, 3, DType::bf16).bytes < gpt_work(config, 3, DType::f32).bytes);
}
