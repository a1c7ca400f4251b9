// Tests when the memory of activations, gradients and parameters is freed.
#include <deque>
#include <functional>
#include <utility>
#include <vector>

#include "core/autograd.h"
#include "core/memory.h"
#include "core/ops.h"
#include "core/ops/scale.h"
#include "core/random.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;

namespace {

int64_t activations() { return memory_ledger().current(Category::activations); }
int64_t workspace() { return memory_ledger().current(Category::workspace); }

using Tensors = std::vector<Tensor>;
using Operation = std::function<Tensor(const Tensors&)>;

/// Runs the operation on parameters that have memory only while their use is announced. Returns
/// true if the value and the gradients equal those of parameters that always have memory, and if
/// nothing keeps the memory of a parameter after its use.
bool says_what_it_reads(const Operation& operation, const Tensors& values) {
  Tensors in_place;
  for (const Tensor& value : values) in_place.push_back(as_parameter(value));
  const Tensor expected = ops::sum(operation(in_place));
  backward(expected);

  std::deque<GatheredParameter> gathered;
  Tensors inputs;
  std::vector<long> holders;
  for (const Tensor& value : values) {
    const Tensor copy = Tensor::from<float>(value.shape(), value.values<float>());
    inputs.push_back(gathered.emplace_back(copy).tensor);
  }
  for (const Tensor& input : inputs) {
    const InUse in_use({&input});
    holders.push_back(input.storage().use_count());
  }
  Tensor y = operation(inputs);
  bool fine = true;
  for (size_t i = 0; i < inputs.size(); ++i) {
    fine = fine && !inputs[i].allocated();
    const InUse in_use({&inputs[i]});
    fine = fine && inputs[i].storage().use_count() == holders[i];
  }
  const Tensor loss = ops::sum(y);
  y = {};
  backward(loss);
  fine = fine && same_bits(loss, expected);
  for (size_t i = 0; i < inputs.size(); ++i) {
    fine = fine && !inputs[i].allocated() &&
           same_bits(inputs[i].leaf()->gradient, in_place[i].leaf()->gradient);
  }
  return fine;
}

}  // namespace

TEST_CASE("backward frees memory as it proceeds, and all of it by the end") {
  const int64_t before = activations();
  const int64_t workspace_before = workspace();
  constexpr int64_t elements = 4096;
  constexpr int64_t bytes = elements * 4;
  const Tensor x = as_parameter(Tensor::full({elements}, 1));
  constexpr int depth = 16;
  std::vector<int64_t> held;  // bytes at each node, in the order of backward
  {
    const auto base = activations();
    Tensor y = x;
    for (int i = 0; i < depth; ++i) {
      Tensor next = Tensor::empty({elements});
      kernels::scale(test_context(), next, y, 2);
      y = record("twice", next, {y},
                 [kept = next, &held, base](const Tensor& dy, InputGradients& grads) {
                   held.push_back(activations() - base);
                   kernels::scale(test_context(), grads.destination(0), dy, 2);
                 });
    }
    Tensor loss = ops::sum(y);
    y = {};
    CHECK(activations() - base == depth * bytes + 4);
    backward(loss);
    // Only the loss itself is left.
    CHECK(activations() - base == 4);
  }
  REQUIRE(held.size() == depth);
  for (int i = 0; i < depth; ++i) {
    // The node whose backward runs, and the nodes before it in the forward, still keep their saved
    // outputs. The node's incoming gradient and the loss are also allocated.
    const int64_t saved_bytes = (depth - i) * bytes;
    CHECK(held[static_cast<size_t>(i)] == saved_bytes + bytes + 4);
  }
  CHECK(activations() - before == bytes);  // only x is left
  CHECK(workspace() == workspace_before);
}

TEST_CASE("a graph that never sees backward leaves no memory behind") {
  const int64_t before = activations();
  {
    const Tensor x = as_parameter(Tensor::full({100}, 1));
    Tensor y = x;
    for (int i = 0; i < 10; ++i) y = ops::gelu(ops::add(y, ops::scale(y, 2)));
    CHECK(activations() > before + 400 * 10);
  }
  CHECK(activations() == before);
}

TEST_CASE("gradients without a buffer are counted as gradients, one for each parameter") {
  const int64_t before = memory_ledger().current(Category::gradients);
  const Tensor x = as_parameter(Tensor::full({10}, 1));
  for (int i = 0; i < 3; ++i) {
    backward(ops::sum(ops::add(x, ops::mul(x, x))));
    CHECK(memory_ledger().current(Category::gradients) - before == 40);
  }
  x.leaf()->gradient = {};
  CHECK(memory_ledger().current(Category::gradients) == before);
}

TEST_CASE("an operation announces the parameters it reads, and keeps none of their memory") {
  const Tensor tokens = random_indices({2, 3}, 1, 4);
  const Tensor a = random_tensor({4, 6}, 2);
  const Tensor b = random_tensor({4, 6}, 3);
  const Tensor w = random_tensor({6, 4}, 4);
  const Tensor bias = random_tensor({6}, 5);
  const Tensor scale = random_tensor({6}, 6);
  const auto check = [](const char* name, const Tensors& values, const Operation& operation) {
    INFO(name);
    CHECK(says_what_it_reads(operation, values));
  };
  check("add", {a, b}, [](const Tensors& in) { return ops::add(in[0], in[1]); });
  check("mul", {a, b}, [](const Tensors& in) { return ops::mul(in[0], in[1]); });
  check("mul with itself", {a}, [](const Tensors& in) { return ops::mul(in[0], in[0]); });
  check("scale", {a}, [](const Tensors& in) { return ops::scale(in[0], 3); });
  check("sum", {a}, [](const Tensors& in) { return ops::sum(in[0]); });
  check("mean", {a}, [](const Tensors& in) { return ops::mean(in[0]); });
  check("reshape", {a}, [](const Tensors& in) { return ops::reshape(in[0], {24}); });
  check("slice", {a}, [](const Tensors& in) { return ops::slice(in[0], 1, 3); });
  check("transpose", {a}, [](const Tensors& in) { return ops::transpose(in[0]); });
  check("gelu", {a}, [](const Tensors& in) { return ops::gelu(in[0]); });
  const DropoutState before = std::exchange(dropout_state(), {.step = 0});
  check("dropout", {a}, [](const Tensors& in) { return ops::dropout(in[0], 0.5f, 1); });
  dropout_state() = before;
  check("convert", {a}, [](const Tensors& in) {
    return ops::convert(ops::convert(in[0], DType::bf16), DType::f32);
  });
  check("matmul", {a, w}, [](const Tensors& in) { return ops::matmul(in[0], in[1]); });
  check("matmul of matrices by one", {random_tensor({2, 3, 6}, 7), w},
        [](const Tensors& in) { return ops::matmul(in[0], in[1]); });
  check("matmul of transposed matrices by one", {random_tensor({2, 6, 3}, 7), w},
        [](const Tensors& in) { return ops::matmul(in[0], in[1], true); });
  check("linear", {a, b, random_tensor({4}, 5)},
        [](const Tensors& in) { return ops::linear(in[0], in[1], in[2]); });
  check("linear with an activation", {a, w, random_tensor({4}, 5)}, [](const Tensors& in) {
    return ops::linear(in[0], in[1], in[2],
                       {.layout = WeightLayout::in_out, .activation = Activation::gelu});
  });
  check("layer_norm", {a, scale, bias},
        [](const Tensors& in) { return ops::layer_norm(in[0], in[1], in[2]); });
  check("residual_layer_norm", {a, b, scale, bias}, [](const Tensors& in) {
    const auto [sum, normalized] = ops::residual_layer_norm(in[0], in[1], in[2], in[3]);
    return ops::mul(sum, normalized);
  });
  check("linear of a norm that is computed again", {a, scale, bias, w}, [](const Tensors& in) {
    return ops::linear(ops::layer_norm(in[0], in[1], in[2]), in[3], {},
                       {.layout = WeightLayout::in_out});
  });
  check("embedding", {a, random_tensor({5, 6}, 8)},
        [&](const Tensors& in) { return ops::embedding(tokens, in[0], in[1]); });
  check("causal_attention", {random_tensor({2, 3, 12}, 9)},
        [](const Tensors& in) { return ops::causal_attention(in[0], 2); });
  check("cross_entropy", {random_tensor({2, 3, 5}, 10)},
        [&](const Tensors& in) { return ops::cross_entropy(in[0], tokens); });
  check("linear_cross_entropy", {random_tensor({2, 3, 6}, 11), a},
        [&](const Tensors& in) { return ops::linear_cross_entropy(in[0], in[1], tokens); });
}
