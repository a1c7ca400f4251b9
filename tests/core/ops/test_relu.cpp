#include <cmath>
#include <limits>

#include "core/check_gradient.h"
#include "core/image_ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

TEST_CASE("relu and its gradient are exact", "[relu]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t elements = GENERATE(0, 1, 7, 1000);
  const Tensor x = as_parameter(random_tensor_of(dtype, {elements}, 1));
  const Tensor dy = random_tensor_of(dtype, {elements}, 2);
  Values y = values_of(x), dx = values_of(dy);
  for (size_t i = 0; i < y.size(); ++i) {
    if (y[i] <= 0) dx[i] = 0;
    y[i] = std::max(y[i], 0.0);
  }
  const Tensor actual = ops::relu(x);
  REQUIRE(values_of(actual) == y);
  backward_from(actual, dy);
  REQUIRE(values_of(x.leaf()->gradient) == dx);
}

TEST_CASE("relu propagates NaN and infinity", "[relu]") {
  const float infinity = std::numeric_limits<float>::infinity();
  const Values y = values_of(
      ops::relu(Tensor::from<float>({4}, {std::nanf(""), infinity, -infinity, -0.5f})));
  CHECK(std::isnan(y[0]));
  CHECK(y[1] == double{infinity});
  CHECK(y[2] == 0);
  CHECK(y[3] == 0);
}

TEST_CASE("relu passes the check of its gradient", "[relu]") {
  Tensor x = random_tensor({3, 5}, 1);
  for (float& value : x.values<float>()) value += value < 0 ? -0.5f : 0.5f;  // far from the kink
  CHECK(check_gradient([](const auto& in) { return ops::relu(in[0]); }, {x}));
}

TEST_CASE("relu keeps its result for the backward, and not its input", "[relu]") {
  const auto activations = [] { return memory_ledger().current(Category::activations); };
  const Tensor parameter = as_parameter(random_tensor({100}, 1));
  const int64_t start = activations();
  const Tensor y = ops::relu(ops::scale(parameter, 2));
  CHECK(activations() - start == y.bytes());
}

TEST_CASE("relu has the same bits for every number of threads", "[relu]") {
  const Tensor x = random_tensor({70001}, 1), dy = random_tensor({70001}, 2);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor parameter = as_parameter(x), y = ops::relu(parameter);
    backward_from(y, dy);
    return std::vector{y, parameter.leaf()->gradient};
  }));
}

}  // namespace
}  // namespace tessera::test
