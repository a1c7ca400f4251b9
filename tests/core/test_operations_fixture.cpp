// Compares results and gradients of single operations with PyTorch's. PyTorch computed them in
// float64 from equal inputs (tests/fixtures/make_operations_fixture.py). Each operation has an
// entry in a table of this file, and an entry with the same name in the script.
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "core/image_ops.h"
#include "core/ops.h"
#include "nn/safetensors.h"
#include "tests/support/catch.h"
#include "tests/support/reference.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {
namespace {

using Inputs = std::vector<Tensor>;

struct Case {
  std::string name;
  std::function<Tensor(const Inputs&)> operation;
};

/// These macros make table entries for operations of one or two inputs without options. An entry
/// has the name of the C++ function.
#define TESSERA_UNARY(name)                                  \
  {                                                          \
#name, [](const Inputs& in) { return ops::name(in[0]); } \
  }
#define TESSERA_BINARY(name)                                        \
  {                                                                 \
#name, [](const Inputs& in) { return ops::name(in[0], in[1]); } \
  }

const std::vector<Case>& elementwise_cases() {
  static const std::vector<Case> list = {
      TESSERA_BINARY(add),
      TESSERA_BINARY(sub),
      TESSERA_BINARY(mul),
      TESSERA_BINARY(div),
      TESSERA_BINARY(maximum),
      TESSERA_BINARY(minimum),
      TESSERA_BINARY(equal),
      TESSERA_BINARY(not_equal),
      TESSERA_BINARY(less),
      TESSERA_BINARY(less_equal),
      TESSERA_BINARY(greater),
      TESSERA_BINARY(greater_equal),
      {"where", [](const Inputs& in) { return ops::where(in[0], in[1], in[2]); }},
      TESSERA_UNARY(neg),
      TESSERA_UNARY(exp),
      TESSERA_UNARY(log),
      TESSERA_UNARY(sqrt),
      TESSERA_UNARY(rsqrt),
      TESSERA_UNARY(reciprocal),
      TESSERA_UNARY(square),
      TESSERA_UNARY(abs),
      TESSERA_UNARY(tanh),
      TESSERA_UNARY(sigmoid),
      TESSERA_UNARY(silu),
      TESSERA_UNARY(softplus),
      TESSERA_UNARY(gelu),
      TESSERA_UNARY(relu),
      {"add_scalar", [](const Inputs& in) { return in[0] + 0.75f; }},
      {"scale", [](const Inputs& in) { return 0.75f * in[0]; }},
      {"pow", [](const Inputs& in) { return ops::pow(in[0], 2.5f); }},
      {"clamp", [](const Inputs& in) { return ops::clamp(in[0], -1, 1.5f); }},
  };
  return list;
}

const std::vector<Case>& reduction_cases() {
  static const std::vector<Case> list = {
      TESSERA_UNARY(sum),
      TESSERA_UNARY(mean),
      {"sum_dims",
       [](const Inputs& in) {
         return ops::sum(in[0], {0, 2});
       }},
      {"mean_dims", [](const Inputs& in) { return ops::mean(in[0], {1}, true); }},
      {"max", [](const Inputs& in) { return ops::max(in[0], {1}); }},
      {"max_dims",
       [](const Inputs& in) {
         return ops::max(in[0], {0, 2}, true);
       }},
      {"logsumexp", [](const Inputs& in) { return ops::logsumexp(in[0], {-1}); }},
      {"logsumexp_dims",
       [](const Inputs& in) {
         return ops::logsumexp(in[0], {0, 2}, true);
       }},
      {"softmax", [](const Inputs& in) { return ops::softmax(in[0], {2}); }},
      {"softmax_middle", [](const Inputs& in) { return ops::softmax(in[0], {1}); }},
      {"log_softmax", [](const Inputs& in) { return ops::log_softmax(in[0], {-1}); }},
      {"log_softmax_first", [](const Inputs& in) { return ops::log_softmax(in[0], {0}); }},
  };
  return list;
}

const std::vector<Case>& layer_cases() {
  static const std::vector<Case> list = {
      TESSERA_UNARY(transpose),
      {"permute",
       [](const Inputs& in) {
         return ops::permute(in[0], {2, 0, 1});
       }},
      {"concat", [](const Inputs& in) { return ops::concat(in, 1); }},
      {"split",
       [](const Inputs& in) {
         return ops::split(in[0], {2, 3}, 1)[1];
       }},
      TESSERA_BINARY(matmul),
      {"matmul_broadcast", [](const Inputs& in) { return ops::matmul(in[0], in[1]); }},
      {"linear", [](const Inputs& in) { return ops::linear(in[0], in[1], in[2]); }},
      {"layer_norm", [](const Inputs& in) { return ops::layer_norm(in[0], in[1], in[2]); }},
      TESSERA_BINARY(rms_norm),
      {"batch_norm",
       [](const Inputs& in) {
         return ops::batch_norm(in[0], in[1], in[2], in[3], {.relu = true}).y;
       }},
      {"max_pool",
       [](const Inputs& in) {
         return ops::max_pool(in[0], {.kernel = 3, .stride = 2, .padding = 1});
       }},
      {"avg_pool",
       [](const Inputs& in) { return ops::avg_pool(in[0], {.kernel = 2, .stride = 2}); }},
      TESSERA_BINARY(embedding),
  };
  return list;
}

const std::vector<Case>& index_and_attention_cases() {
  static const std::vector<Case> list = {
      {"embedding_bag", [](const Inputs& in) { return ops::embedding_bag(in[0], in[1], in[2]); }},
      {"gather", [](const Inputs& in) { return ops::gather(in[0], 1, in[1]); }},
      {"index_select", [](const Inputs& in) { return ops::index_select(in[0], 1, in[1]); }},
      {"scatter_add", [](const Inputs& in) { return ops::scatter_add(in[0], 1, in[1], in[2]); }},
      TESSERA_UNARY(rotary),
      {"rotary_interleaved",
       [](const Inputs& in) {
         return ops::rotary(in[0], {}, {.pairs = ops::RotaryPairs::interleaved});
       }},
      {"attention", [](const Inputs& in) { return ops::attention(in[0], in[1], in[2]); }},
      {"attention_causal",
       [](const Inputs& in) { return ops::attention(in[0], in[1], in[2], {.causal = true}); }},
      {"causal_attention", [](const Inputs& in) { return ops::causal_attention(in[0], 2); }},
  };
  return list;
}

const std::vector<Case>& loss_cases() {
  static const std::vector<Case> list = {
      TESSERA_BINARY(mse_loss),
      TESSERA_BINARY(bce_with_logits),
      TESSERA_BINARY(hinge_loss),
      {"cosine_similarity",
       [](const Inputs& in) { return ops::cosine_similarity(in[0], in[1], 1); }},
      {"cosine_loss",
       [](const Inputs& in) { return ops::cosine_loss(in[0], in[1], in[2], 0.125f); }},
      TESSERA_BINARY(cross_entropy),
      {"cross_entropy_weights",
       [](const Inputs& in) { return ops::cross_entropy(in[0], in[1], {.class_weights = in[2]}); }},
      {"cross_entropy_ignored",
       [](const Inputs& in) { return ops::cross_entropy(in[0], in[1], {.ignored = -100}); }},
      {"cross_entropy_both",
       [](const Inputs& in) {
         return ops::cross_entropy(in[0], in[1], {.class_weights = in[2], .ignored = -100});
       }},
      {"smoothed_cross_entropy",
       [](const Inputs& in) { return ops::smoothed_cross_entropy(in[0], in[1], 0.125f); }},
  };
  return list;
}

#undef TESSERA_UNARY
#undef TESSERA_BINARY

std::vector<Case> all_cases() {
  std::vector<Case> all;
  for (const auto& list : {elementwise_cases(), reduction_cases(), layer_cases(),
                           index_and_attention_cases(), loss_cases()}) {
    all.insert(all.end(), list.begin(), list.end());
  }
  return all;
}

class Fixture {
 public:
  bool has(const std::string& name) const { return names().count(name) > 0; }

  std::set<std::string> names() const {
    std::set<std::string> result;
    for (const auto& entry : file_.entries()) result.insert(entry.name);
    return result;
  }
  Tensor tensor(const std::string& name) const {
    const auto& entry = file_.entry(name);
    const Shape shape{std::span<const int64_t>(entry.shape)};
    if (entry.dtype == "I32") return values<int32_t>(entry, shape, DType::i32);
    return values<float>(entry, shape, DType::f32);
  }

 private:
  template <class T>
  Tensor values(const nn::SafetensorsEntry& entry, const Shape& shape, DType dtype) const {
    const Tensor result = Tensor::empty(shape, dtype);
    file_.read<T>(entry, 0, result.values<T>());
    return result;
  }

  nn::SafetensorsReader file_{fixture("operations.safetensors")};
};

constexpr double tolerance = 1e-5;

TEST_CASE("operations and their gradients equal PyTorch's", "[operations_fixture]") {
  const Fixture file;
  for (const Case& c : all_cases()) {
    INFO(c.name);
    Inputs inputs;
    for (int i = 0; file.has(fmt::format("{}/in{}", c.name, i)); ++i) {
      const Tensor input = file.tensor(fmt::format("{}/in{}", c.name, i));
      inputs.push_back(input.dtype() == DType::f32 ? as_parameter(input) : input);
    }
    REQUIRE_FALSE(inputs.empty());
    const Tensor expected = file.tensor(c.name + "/y");
    const Tensor y = c.operation(inputs);
    REQUIRE(y.shape() == expected.shape());
    CHECK(relative_error(y, values_of(expected)) <= tolerance);
    if (y.requires_grad()) backward_from(y, file.tensor(c.name + "/dy"));
    for (size_t i = 0; i < inputs.size(); ++i) {
      CAPTURE(i);
      const std::string name = fmt::format("{}/grad{}", c.name, i);
      const Tensor gradient = inputs[i].leaf() ? inputs[i].leaf()->gradient : Tensor();
      if (file.has(name)) {
        REQUIRE(gradient.defined());
        CHECK(relative_error(gradient, values_of(file.tensor(name))) <= tolerance);
      } else if (gradient.defined()) {
        // The mask of `where` has no gradient in PyTorch. In Tessera, its gradient must be zero.
        CHECK(values_of(gradient) == Values(values_of(gradient).size(), 0.0));
      }
    }
  }
}

TEST_CASE("every operation of the fixture is compared", "[operations_fixture]") {
  std::set<std::string> compared, stored;
  for (const Case& c : all_cases()) CHECK(compared.insert(c.name).second);
  for (const std::string& name : Fixture().names()) stored.insert(name.substr(0, name.find('/')));
  CHECK(compared == stored);
}

}  // namespace
}  // namespace tessera::test
