#include "train/plan/plan_gpt.h"

#include "tests/support/catch.h"

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
