// Tests ways to train a GPT in less memory: recomputed blocks, 16-bit parameters, frozen
// parameters.
#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/ops/linear_cross_entropy.h"
#include "core/random.h"
#include "models/gpt/gpt.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;
using Catch::Matchers::ContainsSubstring;
using models::Gpt;
using models::GptConfig;

namespace {

constexpr GptConfig small{
    .layers = 6, .heads = 2, .width = 32, .context = 16, .vocab = 37, .dropout = 0.1f};

/// Sets the dropout state to step 0, because dropout throws if no step is set. The destructor
/// restores the previous state.
struct InStep {
  InStep() { dropout_state() = {.step = 0}; }
  ~InStep() { dropout_state() = before; }
  InStep(const InStep&) = delete;
  InStep& operator=(const InStep&) = delete;
  const DropoutState before = dropout_state();
};

/// The results of one step: `tensors` has the loss, then the gradient of every parameter.
struct Step {
  std::vector<Tensor> tensors;
  std::vector<std::string> completed;  // names in the order of completion
  int64_t peak = 0;                    // bytes of activations
};

Step step_of(GptConfig config, bool recompute) {
  config.recompute = recompute;
  Gpt model(config);
  materialize(model, default_device(), 1);
  Step step;
  for (const auto& named : model.named_parameters()) {
    named.parameter.leaf().gradient_complete = [&step, name = named.name] {
      step.completed.push_back(name);
    };
  }
  dropout_state() = {.seed = 1, .step = 2, .first_sample = 3};
  const Tensor tokens = random_indices({3, config.context}, 1, config.vocab);
  const Tensor targets = random_indices({3, config.context}, 2, config.vocab);
  const int64_t before = memory_ledger().current(Category::activations);
  memory_ledger().reset_peaks();
  const Tensor loss = model.loss(tokens, targets);
  backward(loss);
  step.peak = memory_ledger().peak(Category::activations) - before;
  step.tensors.push_back(loss);
  for (const auto& named : model.named_parameters()) {
    step.tensors.push_back(named.parameter.gradient());
  }
  return step;
}

/// Returns the mean loss of four batches. Checks that the gradients have the dtype of the model and
/// are finite.
double loss_of(DType dtype, bool recompute = false) {
  GptConfig config = small;
  config.recompute = recompute;
  Gpt model(config);
  model.to(dtype);
  materialize(model, default_device(), 1);
  double total = 0;
  for (uint64_t batch = 0; batch < 4; ++batch) {
    const Tensor tokens = random_indices({4, config.context}, 2 * batch, config.vocab);
    const Tensor targets = random_indices({4, config.context}, 2 * batch + 1, config.vocab);
    const Tensor loss = model.loss(tokens, targets);
    backward(loss);
    total += loss.item() / 4;
    for (const auto& named : model.named_parameters()) {
      CHECK(named.parameter.gradient().dtype() == dtype);
      const Values values = values_of(named.parameter.gradient());
      CHECK(std::all_of(values.begin(), values.end(), [](double x) { return std::isfinite(x); }));
    }
  }
  return total;
}

}  // namespace

TEST_CASE("the embeddings are one block, and so is each layer, the last with the final norm") {
  const Gpt model(small);
  for (const auto& named : model.named_parameters()) {
    INFO(named.name);
    int expected = 0;
    if (named.name.starts_with("h.")) expected = 1 + (named.name[2] - '0');
    if (named.name.starts_with("ln_f")) expected = 6;
    CHECK(named.block == expected);
  }
}

TEST_CASE("recomputed blocks give the same bits with at most half of the activations") {
  const ThreadCountRestorer threads_before;
  const DropoutState dropout_before = dropout_state();
  for (const int threads : {1, 2}) {
    set_thread_count(threads);
    const Step kept = step_of(small, false);
    const Step again = step_of(small, true);
    REQUIRE(kept.tensors.size() == again.tensors.size());
    for (size_t i = 0; i < kept.tensors.size(); ++i) {
      CHECK(same_bits(kept.tensors[i], again.tensors[i]));
    }
    CHECK(kept.completed == again.completed);
    CHECK(again.peak <= kept.peak / 2);
  }
  dropout_state() = dropout_before;
}

TEST_CASE("a micro-batch holds exactly the bytes that docs/memory.md states") {
  const InStep step;
  const DType dtype = GENERATE(DType::f32, DType::bf16);
  const int64_t size = dtype_size(dtype);
  const int64_t n = 3 * small.context;
  const auto [L, H, C, V] = std::tuple{small.layers, small.heads, small.width, small.vocab};
  const auto held = [&](bool recompute) {
    GptConfig config = small;
    config.recompute = recompute;
    Gpt model(config);
    model.to(dtype);
    materialize(model, default_device(), 1);
    const int64_t before = memory_ledger().current(Category::activations);
    const Tensor tokens = random_indices({3, config.context}, 1, V);
    const Tensor targets = random_indices({3, config.context}, 2, V);
    const Tensor loss = model.loss(tokens, targets);
    const int64_t after_forward = memory_ledger().current(Category::activations) - before;
    memory_ledger().reset_peaks();
    backward(loss);
    return std::pair{after_forward, memory_ledger().peak(Category::activations) - before};
  };
  const int64_t S = (V + 63) / 64 * 64;  // stride of a row of logits
  // If the forward of linear_cross_entropy already computes the gradients of its input and of its
  // weight, it keeps these gradients instead of the input, normalizers and logits.
  const bool in_forward = ops::gradient_in_forward(dtype, default_device());
  const int64_t head = 2 * C * size + 4 * (in_forward ? 4 : 6 + S);
  const int64_t whole = 4 + (in_forward ? 4 * S * C : 0);  // independent of the number of tokens
  CHECK(held(false).first == n * (L * (10 * C * size + 4 * (H + 4)) + head) + whole);
  const auto [after_forward, peak] = held(true);
  CHECK(after_forward == n * ((2 * L - 1) * C * size + head) + whole);
  CHECK(peak == n * ((2 * L + 16) * C * size + 4 * (H + 6)) + 4);
}

TEST_CASE("eval() does not recompute, and must not come between forward and backward") {
  const InStep step;
  GptConfig config = small;
  config.recompute = true;
  Gpt model(config);
  materialize(model, default_device(), 1);
  const Tensor tokens = random_indices({2, 16}, 1, config.vocab);
  const Tensor loss = model.loss(tokens, tokens);
  model.eval();
  CHECK_THROWS_WITH(backward(loss),
                    ContainsSubstring("train() or eval() was called between a forward and its "
                                      "backward"));
  const Tensor expected = model.logits(tokens);
  const NoGrad no_grad;
  CHECK(same_bits(model.logits(tokens), expected));
}

TEST_CASE("losses of 16-bit models equal those of f32 models within their precision") {
  const InStep step;
  const double expected = loss_of(DType::f32);
  CHECK(std::fabs(loss_of(DType::bf16) - expected) < 1e-2);
  CHECK(std::fabs(loss_of(DType::f16) - expected) < 2e-3);
  CHECK(loss_of(DType::bf16, true) == loss_of(DType::bf16));
}

TEST_CASE("logits are f32 for every dtype") {
  Gpt model(small);
  model.to(DType::bf16);
  materialize(model, default_device(), 1);
  model.eval();
  const NoGrad no_grad;
  const Tensor tokens = random_indices({1, 5}, 1, small.vocab);
  const Tensor logits = model.logits(tokens);
  const Tensor next = model.next_logits(tokens);
  CHECK(logits.dtype() == DType::f32);
  REQUIRE(next.dtype() == DType::f32);
  CHECK(relative_error(next, values_of(logits.view({5, small.vocab}).rows(4, 5))) < 1e-2);
}

TEST_CASE("backward skips frozen blocks whose gradients nothing needs") {
  const InStep step;
  GptConfig config = small;
  config.recompute = GENERATE(false, true);
  Gpt model(config);
  materialize(model, default_device(), 1);
  Gpt whole(config);
  materialize(whole, default_device(), 1);
  // Freezes everything but the last two blocks and the final norm.
  std::vector<std::string> completed;
  for (const auto& named : model.named_parameters()) {
    named.parameter.set_trainable(named.block >= 5);
    named.parameter.leaf().gradient_complete = [&completed, name = named.name] {
      completed.push_back(name);
    };
  }
  const Tensor tokens = random_indices({2, 16}, 1, config.vocab);
  const int64_t before = memory_ledger().current(Category::activations);
  const Tensor loss = model.loss(tokens, tokens);
  const int64_t held = memory_ledger().current(Category::activations) - before;
  const Tensor expected = whole.loss(tokens, tokens);
  const int64_t whole_held = memory_ledger().current(Category::activations) - before - held;
  CHECK(held < whole_held * 2 / 3);
  CHECK(same_bits(loss, expected));
  backward(loss);
  backward(expected);
  const auto list = model.named_parameters();
  const auto whole_list = whole.named_parameters();
  CHECK(completed.size() == 2 * 12 + 2);
  for (size_t i = 0; i < list.size(); ++i) {
    const Tensor& gradient = list[i].parameter.gradient();
    REQUIRE(gradient.defined() == (list[i].block >= 5));
    if (gradient.defined()) CHECK(same_bits(gradient, whole_list[i].parameter.gradient()));
  }
}
