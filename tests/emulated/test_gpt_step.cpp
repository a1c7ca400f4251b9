// Tests how many kernels a GPT's training step launches on the device, and which matrix products it
// computes.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "core/ops/linear_cross_entropy.h"
#include "core/product_tuning.h"
#include "emulated/control.h"
#include "models/gpt/gpt_memory.h"
#include "optim/zero_optimizer.h"
#include "tests/support/catch.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

using Launches = std::map<std::string, int64_t>;

struct GptStep {
  models::GptConfig model;
  int64_t sequences = 0;
  int64_t tokens = 0;

  int64_t rows() const { return sequences * tokens; }
};

/// Adds up the launches of each forward operation over all layers: the path "h.1/attn/linear"
/// becomes "linear". Other paths stay as they are.
Launches without_layers(const Launches& launches) {
  Launches result;
  for (const auto& [path, count] : launches) {
    const bool in_forward = !path.starts_with("backward") && !path.starts_with("end of step");
    result[in_forward ? path.substr(path.rfind('/') + 1) : path] += count;
  }
  return result;
}

/// Counts the launches in the last of `steps` bf16 steps on one rank at stage 0. There are two
/// buckets: one for the tied table, and one for all other parameters.
Launches launches_of(const GptStep& step, int steps) {
  set_default_device({DeviceType::cuda, 0});
  models::Gpt model(step.model);
  model.to(DType::bf16);
  optim::ZeroOptimizer optimizer(model, optim::AdamW{.learning_rate = 1e-3f}, lone_world(),
                                 {.stage = 0, .bucket_bytes = int64_t{1} << 30, .clip = 1});
  const Tensor tokens = Tensor::zeros({step.sequences, step.tokens}, DType::i32);
  const Batch batch{.global = step.sequences, .micro = step.sequences};
  Launches launches;
  for (int i = 0; i < steps; ++i) {
    emulated::count_launches(true);
    for ([[maybe_unused]] const auto& micro : optimizer.micro_batches(i, batch)) {
      optimizer.backward(model.loss(tokens, tokens));
    }
    optimizer.step();
    emulated::count_launches(false);
    launches = without_layers(emulated::take_launches());
  }
  return launches;
}

/// Returns the expected launches of a step that computes the logits in `chunks` chunks of rows.
/// `second_pass` is true if the step has more than 64 rows. A bias gradient then takes two launches
/// instead of one.
Launches expected(int64_t layers, int64_t chunks, bool second_pass) {
  return {
      {"embedding", 1},
      {"layer_norm", 1},
      {"residual_layer_norm", 2 * layers},
      {"linear", 5 * layers},  // four products, and GELU
      {"causal_attention", layers},
      // One launch checks targets, two pad the weight, and two add up losses. Each chunk takes four
      // launches: the logits, the losses with the gradient of the logits, and two products of this
      // gradient.
      {"linear_cross_entropy", 5 + 4 * chunks},
      // The gradients of input and weight are multiplied by the gradient of the loss.
      {"backward/linear_cross_entropy", 2},
      {"backward/residual_layer_norm", 4 * layers},
      // Each of four linears has two products and a bias gradient. GELU's gradient is one more
      // launch. GELU and two norms are computed again.
      {"backward/linear", (second_pass ? 20 : 16) * layers},
      {"backward/causal_attention", 3 * layers},
      {"backward/layer_norm", 2},
      {"backward/embedding", 7},
      // One launch fills in the gradient of the loss. The first norm and the residual both read the
      // embeddings' output, so one launch adds their two gradients. One launch per bucket adds the
      // bucket's gradients to their sums.
      {"backward", 4},
      {"", 2},  // setting the losses to zero, and copying a micro-batch's loss
      // Three launches compute the gradient norm, one computes the step's scalars, and one copies
      // the scalars to the host. For each of two buckets, one launch copies the summed gradients to
      // where the update reads them.
      {"end of step", 7},
      // For each of two buckets, one launch stores its UpdateSegments and the hyper-parameters of
      // the parameter groups, one runs AdamW, and one rounds the weights.
      {"end of step/update", 6},
  };
}

TEST_CASE("a GPT's step makes the launches in this table, and no others") {
  const auto [layers, sequences] = GENERATE(std::pair{1, 1}, std::pair{3, 2}, std::pair{2, 6});
  // The size of every parameter is a multiple of 256 elements, so no parameter has padding. More
  // launches would be needed to clear padding.
  const GptStep step{{.layers = layers, .heads = 4, .width = 256, .context = 16, .vocab = 37,
                      .loss_chunk_rows = 16},
                     sequences, 16};
  const Launches actual = launches_of(step, 2);
  const Launches table = expected(layers, sequences, step.rows() > 64);
  for (const auto& [name, count] : actual) {
    CAPTURE(name, count);
    REQUIRE(table.contains(name));
    CHECK(count == table.at(name));
  }
  CHECK(actual.size() == table.size());
}

TEST_CASE("by this table, a step of GPT-2 with 65,536 rows makes 473 launches") {
  const int64_t rows = 65536;
  const int64_t chunk = ops::logits_chunk_rows(50257, DType::bf16, Device{DeviceType::cuda, 0});
  int64_t launches = 0;
  for (const auto& [name, count] : expected(12, (rows + chunk - 1) / chunk, true)) {
    launches += count;
  }
  CHECK(launches == 473);
}

using Products = std::vector<cuda::ProductShape>;

/// Returns the products for which the process asks cuBLASLt for an algorithm while `body` runs. The
/// process asks only once for each product.
template <class Body>
Products new_products(Body&& body) {
  const Products before = cuda::computed_products(0);
  body();
  const Products after = cuda::computed_products(0);
  Products added;
  std::ranges::set_difference(after, before, std::back_inserter(added));
  return added;
}

void plan(const GptStep& step) {
  (void)models::gpt_training_memory(step.model, DType::bf16, step.sequences, step.tokens,
                                    {DeviceType::cuda, 0});
}

TEST_CASE("the plan of a GPT's step looks up exactly the products that the step computes") {
  // Tests logits in one chunk and in several chunks, with an odd vocabulary. Each iteration has
  // another width, so that no earlier iteration has asked about its products.
  int64_t width = 40;
  for (const bool plan_first : {true, false}) {
    for (const int64_t chunk_rows : {0, 24}) {
      CAPTURE(plan_first, chunk_rows);
      const GptStep step{{.layers = 2, .heads = 2, .width = width += 8, .context = 16,
                          .vocab = 1009, .loss_chunk_rows = chunk_rows},
                         2, 16};
      const auto compute = [&] { launches_of(step, 1); };
      const auto ask = [&] { plan(step); };
      const Products first = plan_first ? new_products(ask) : new_products(compute);
      const Products second = plan_first ? new_products(compute) : new_products(ask);
      CHECK(first.size() >= 12);
      CHECK(second.empty());
    }
  }
}

TEST_CASE("strides of all matrices in a GPT preset's products are multiples of 16 bytes") {
  for (const std::string& name : models::GptConfig::preset_names()) {
    const models::GptConfig config = models::GptConfig::preset(name);
    const Products products = new_products([&] { plan({config, 12, config.context}); });
    CHECK(products.size() >= 12);
    for (const auto& shape : products) {
      CAPTURE(name, shape.m, shape.n, shape.k, shape.a.stride, shape.b.stride, shape.c.stride);
      CHECK(shape.a.stride * dtype_size(shape.dtype) % 16 == 0);
      CHECK(shape.b.stride * dtype_size(shape.dtype) % 16 == 0);
      CHECK(shape.c.stride * dtype_size(shape.c_dtype) % 16 == 0);
    }
  }
}

}  // namespace
}  // namespace tessera::test
