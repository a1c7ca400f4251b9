#include "train/non_finite.h"

#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/fill.h"
#include "models/gpt/gpt.h"
#include "tests/support/catch.h"

using namespace tessera;
using namespace tessera::train;

namespace {

models::GptConfig tiny_config() {
  return {.layers = 2, .heads = 2, .width = 8, .context = 4, .vocab = 11};
}

}  // namespace

TEST_CASE("the first operation whose output is not finite is named with its parameter") {
  const DType dtype = GENERATE(DType::f32, DType::bf16, DType::f16);
  models::Gpt model(tiny_config());
  model.to(dtype);
  nn::materialize(model);
  const Tensor tokens = Tensor::from<int32_t>({1, 3}, {1, 2, 3});
  const auto forward = [&] { model.loss(tokens, tokens); };
  REQUIRE(first_non_finite(forward) == "none of the operations when they were run again");
  for (const auto& named : model.named_parameters()) {
    if (named.name != "h.1.mlp.c_fc.weight") continue;
    visit_float(dtype, "test",
                [&]<class T>() { named.parameter.tensor().values<T>()[5] = T(NAN); });
  }
  REQUIRE(first_non_finite(forward) ==
          "linear with h.1.mlp.c_fc.weight, which is not finite itself");
  // first_non_finite must have removed its observer. Otherwise this pass would call the observer,
  // which uses destroyed variables.
  forward();
}

TEST_CASE("an operation is not blamed for its inputs, nor for infinities that disappear") {
  const float inf = std::numeric_limits<float>::infinity();
  const Tensor scores = Tensor::full({2, 3}, 1);
  const Tensor mask = Tensor::from<float>({2, 3}, {0, -inf, -inf, 0, 0, -inf});
  const auto masked = [&] { return ops::softmax(ops::add(scores, mask), {1}); };
  CHECK(first_non_finite([&] { ops::log(ops::add(ops::sum(masked()), -5.0f)); }) == "log");
  CHECK(first_non_finite([&] { ops::exp(ops::scale(masked(), 1000)); }) == "exp");
  // exp computes infinities, and add then computes NaNs from them. The result must name exp.
  CHECK(first_non_finite([&] {
          const Tensor large = ops::exp(ops::scale(masked(), 1000));
          ops::add(large, ops::scale(large, -1));
        }) == "exp");
  CHECK(first_non_finite([&] {
          ops::softmax(ops::add(scores, Tensor::full({2, 3}, -inf)), {1});
        }) == "softmax, from infinities in the data");
  for (const float value : {NAN, inf}) {
    CHECK(first_non_finite([&] {
            ops::sum(ops::add(scores, Tensor::full({2, 3}, value)));
          }) == "the data: an input of add that no operation computed is not finite");
  }
}

TEST_CASE("a value that overflows on the way is found where it overflows") {
  const auto [dtype, large] = GENERATE(std::pair(DType::f32, 3e38f), std::pair(DType::f16, 6e4f));
  models::Gpt model(tiny_config());
  model.to(dtype);
  nn::materialize(model);
  const Tensor tokens = Tensor::from<int32_t>({1, 3}, {1, 2, 3});
  for (const auto& named : model.named_parameters()) {
    const bool weight = named.name == "h.0.attn.c_proj.weight";
    if (!weight && named.name != "h.0.attn.c_attn.bias") continue;
    kernels::fill(current_context({}), named.parameter.tensor(), weight ? large : 100);
  }
  REQUIRE(first_non_finite([&] { model.loss(tokens, tokens); }) ==
          "linear with h.0.attn.c_proj.weight");
}
