// Compares max_pool's results and gradients with plain loops. Bits must not depend on threads.
#include <cmath>
#include <limits>

#include "core/check_gradient.h"
#include "core/image_ops.h"
#include "tests/support/catch.h"
#include "tests/support/pool_cases.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

struct Reference {
  Values y, dx;
};

Reference reference(const PoolCase& pool, const Values& x, const Values& dy) {
  Reference result{Values(dy.size(), -HUGE_VAL), Values(x.size(), 0.0)};
  std::vector<size_t> chosen(dy.size());
  pool.each([&](size_t window, size_t pixel) {
    if (x[pixel] > result.y[window]) {  // the first of equal pixels wins
      result.y[window] = x[pixel];
      chosen[window] = pixel;
    }
  });
  for (size_t i = 0; i < dy.size(); ++i) result.dx[chosen[i]] += dy[i];
  return result;
}

TEST_CASE("max_pool and its gradient equal plain loops", "[max_pool]") {
  const PoolCase pool = GENERATE(from_range(pool_cases()));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  Tensor values = random_tensor(pool.x, 1, -3, 3);
  // With whole numbers, the maximum of a window often occurs more than once.
  for (float& value : values.values<float>()) value = std::round(value);
  const Tensor x = as_parameter(rounded_to(dtype, values));
  const Tensor dy = random_tensor_of(dtype, pool.y(), 2);
  const Tensor y = ops::max_pool(x, pool.options);
  REQUIRE(y.shape() == pool.y());
  backward_from(y, dy);
  const Reference expected = reference(pool, values_of(x), values_of(dy));
  CHECK(values_of(y) == expected.y);
  CHECK(max_error(x.leaf()->gradient, expected.dx) < tolerance(dtype, 1, 1e-6));
}

TEST_CASE("max_pool takes a window's first NaN as its maximum", "[max_pool]") {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  const Tensor x = as_parameter(Tensor::from<float>(
      {1, 2, 6, 1}, {1, nan, -infinity, -infinity, 5, 7,  //
                     9, nan, -infinity, -infinity, 7, infinity}));
  const Tensor y = ops::max_pool(x, {.kernel = 2, .stride = 2});
  backward_from(y, Tensor::from<float>(y.shape(), {1, 2, 3}));
  const Values found = values_of(y);
  CHECK(std::isnan(found[0]));
  CHECK(found[1] == -HUGE_VAL);
  CHECK(found[2] == HUGE_VAL);
  CHECK(values_of(x.leaf()->gradient) == Values{0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 0, 3});
}

TEST_CASE("max_pool passes the check of its gradient", "[max_pool]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  Tensor x = Tensor::empty({1, 5, 5, 3});
  float* values = x.data<float>();
  // The values are a permutation of 75 multiples of 1/4, so they differ by more than the steps of
  // the finite differences.
  for (int i = 0; i < 75; ++i) values[i] = static_cast<float>(i * 32 % 75) / 4 - 9;
  CHECK(check_gradient(
      [](const auto& in) { return ops::max_pool(in[0], {.kernel = 3, .stride = 2, .padding = 1}); },
      {x}, {.dtype = dtype}));
}

TEST_CASE("max_pool has the same bits for every number of threads", "[max_pool]") {
  const Tensor x = random_tensor({3, 31, 33, 17}, 1);
  const PoolOptions options{.kernel = 3, .stride = 2, .padding = 1};
  const Tensor dy = random_tensor(ops::max_pool(x, options).shape(), 2);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor parameter = as_parameter(x), y = ops::max_pool(parameter, options);
    backward_from(y, dy);
    return std::vector{y, parameter.leaf()->gradient};
  }));
}

TEST_CASE("max_pool keeps a byte for each maximum", "[max_pool]") {
  const auto activations = [] { return memory_ledger().current(Category::activations); };
  const Tensor x = as_parameter(random_tensor({2, 8, 8, 3}, 1));
  const int64_t start = activations();
  const Tensor loss = ops::sum(ops::max_pool(x, {.kernel = 2, .stride = 2}));
  CHECK(activations() - start == loss.bytes() + 2 * 4 * 4 * 3);
}

TEST_CASE("max_pool refuses invalid arguments", "[max_pool]") {
  const Tensor x = random_tensor({2, 8, 9, 3}, 1);
  CHECK_THROWS_WITH(ops::max_pool(random_tensor({2, 8, 9}, 1), {.kernel = 2}),
                    "max_pool: x has shape [2, 8, 9], expected (N, H, W, C)");
  CHECK_THROWS_WITH(
      ops::max_pool(random_tensor({1, 0, 2, 1}, 1), {.kernel = 2, .stride = 2, .padding = 1}),
      "max_pool: x has shape [1, 0, 2, 1], expected images of at least 1 x 1 pixels");
  CHECK_THROWS_WITH(ops::max_pool(x, {.kernel = {3, 0}}),
                    "max_pool: the width of the kernel is 0 and of the stride 1, expected 1 to "
                    "2147483647");
  CHECK_THROWS_WITH(ops::max_pool(x, {.kernel = 3, .stride = {0, 1}}),
                    "max_pool: the height of the kernel is 3 and of the stride 0, expected 1 to "
                    "2147483647");
  CHECK_THROWS_WITH(ops::max_pool(x, {.kernel = 3, .padding = 2}),
                    "max_pool: the height of the padding is 2, expected 0 to half of the "
                    "kernel's 3");
  CHECK_THROWS_WITH(ops::max_pool(x, {.kernel = {2, 12}, .padding = {0, 1}}),
                    "max_pool: the width of the kernel is 12, expected at most 11, that of x "
                    "[2, 8, 9, 3] with its padding");
  CHECK_THROWS_WITH(ops::max_pool(random_tensor({1, 16, 16, 1}, 1), {.kernel = 16}),
                    "max_pool: a window of 16 x 16 pixels, expected at most 255");
}

}  // namespace
}  // namespace tessera::test
