// Compares results and gradients of avg_pool and global_avg_pool with float64. Bits must be equal
// for any number of threads.
#include "core/check_gradient.h"
#include "core/image_ops.h"
#include "tests/support/catch.h"
#include "tests/support/pool_cases.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

TEST_CASE("avg_pool and its gradient equal float64", "[avg_pool]") {
  const PoolCase pool = GENERATE(from_range(pool_cases()));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(dtype, pool.x, 1));
  const Tensor dy = random_tensor_of(dtype, pool.y(), 2);
  const Tensor y = ops::avg_pool(x, pool.options);
  REQUIRE(y.shape() == pool.y());
  backward_from(y, dy);
  const Values in = values_of(x), grad = values_of(dy);
  Values out(grad.size(), 0.0), dx(in.size(), 0.0);
  const auto& kernel = pool.options.kernel;
  const double share = 1.0 / static_cast<double>(kernel.height * kernel.width);
  pool.each([&](size_t window, size_t pixel) {
    out[window] += in[pixel] * share;
    dx[pixel] += grad[window] * share;
  });
  CHECK(max_error(y, out) < tolerance(dtype, 1, 1e-6));
  CHECK(max_error(x.leaf()->gradient, dx) < tolerance(dtype, 1, 1e-6));
}

TEST_CASE("global_avg_pool is the mean over an image", "[avg_pool]") {
  const auto [height, width] = GENERATE(table<int64_t, int64_t>({{5, 7}, {33, 32}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(dtype, {2, height, width, 19}, 1));
  const Tensor dy = random_tensor_of(dtype, {2, 19}, 2);
  const Tensor y = ops::global_avg_pool(x);
  REQUIRE(y.shape() == Shape{2, 19});
  backward_from(y, dy);
  const Values in = values_of(x), grad = values_of(dy);
  const auto pixels = static_cast<size_t>(height * width);
  Values out(grad.size(), 0.0), dx(in.size());
  for (size_t i = 0; i < in.size(); ++i) {
    const size_t to = i / (pixels * 19) * 19 + i % 19;
    out[to] += in[i] / static_cast<double>(pixels);
    dx[i] = grad[to] / static_cast<double>(pixels);
  }
  CHECK(max_error(y, out) < tolerance(dtype, 1, 1e-6));
  CHECK(max_error(x.leaf()->gradient, dx) < tolerance(dtype, 1, 1e-6));
}

TEST_CASE("global_avg_pool of a large image of equal pixels is exact", "[avg_pool]") {
  // The roundings of an f32 sum would not cancel: the result would be 0.09975.
  const Tensor y = ops::global_avg_pool(Tensor::full({1, 512, 512, 1}, 0.1f));
  CHECK(y.shape() == Shape{1, 1});
  CHECK(y.item() == Approx(0.1f).epsilon(1e-6));
}

TEST_CASE("avg_pool passes the check of its gradient", "[avg_pool]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const PoolOptions options{.kernel = 3, .stride = 2, .padding = 1};
  CHECK(check_gradient([&](const auto& in) { return ops::avg_pool(in[0], options); },
                       {random_tensor({2, 5, 4, 3}, 1)}, {.dtype = dtype}));
  CHECK(check_gradient([](const auto& in) { return ops::global_avg_pool(in[0]); },
                       {random_tensor({2, 3, 3, 2}, 1)}, {.dtype = dtype}));
}

TEST_CASE("avg_pool has the same bits for every number of threads", "[avg_pool]") {
  const Tensor x = random_tensor({3, 31, 33, 17}, 1);
  const PoolOptions options{.kernel = 3, .stride = 2, .padding = 1};
  const Tensor dy = random_tensor(ops::avg_pool(x, options).shape(), 2);
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor parameter = as_parameter(x), y = ops::avg_pool(parameter, options);
    backward_from(y, dy);
    return std::vector{y, parameter.leaf()->gradient};
  }));
}

TEST_CASE("avg_pool refuses invalid arguments", "[avg_pool]") {
  const Tensor x = random_tensor({2, 8, 9, 3}, 1);
  CHECK_THROWS_WITH(ops::avg_pool(x, {.kernel = 9}),
                    "avg_pool: the height of the kernel is 9, expected at most 8, that of x "
                    "[2, 8, 9, 3] with its padding");
  CHECK_THROWS_WITH(ops::avg_pool(x, {.kernel = 3, .padding = int64_t{1} << 62}),
                    "avg_pool: the height of the padding is 4611686018427387904, expected 0 to "
                    "half of the kernel's 3");
  CHECK_THROWS_WITH(ops::avg_pool(x, {.kernel = int64_t{1} << 62, .padding = int64_t{1} << 61}),
                    "avg_pool: the height of the kernel is 4611686018427387904 and of the stride "
                    "1, expected 1 to 2147483647");
  CHECK_THROWS_WITH(
      ops::global_avg_pool(random_tensor({2, 0, 9, 3}, 1)),
      "global_avg_pool: x has shape [2, 0, 9, 3], expected (N, H, W, C) with H, W > 0");
}

}  // namespace
}  // namespace tessera::test
