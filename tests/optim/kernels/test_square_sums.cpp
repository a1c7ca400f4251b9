// Compares block_square_sums with a plain loop in float64. Also tests that the sum of a block of
// 256 elements has the same bits in a shard as in the whole tensor, and that threads do not change
// the bits. Each -0.0 in the tensor must become +0.0.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <span>
#include <vector>

#include "optim/kernels/square_sums.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

using namespace tessera;
using namespace tessera::test;

namespace {

std::vector<double> sums_of(const Tensor& x) {
  // The tensor serves only as memory for doubles. There is no DType for float64, so the dtype is
  // i64, which also has 8 bytes per element.
  const Tensor sums = Tensor::empty({(x.elements() + 255) / 256}, DType::i64);
  const std::span of_blocks(static_cast<double*>(sums.raw()),
                            static_cast<size_t>(sums.elements()));
  kernels::block_square_sums(test_context(), of_blocks, x);
  (void)sums.values<int64_t>();  // waits for the device
  return {of_blocks.begin(), of_blocks.end()};
}

}  // namespace

TEST_CASE("block_square_sums against float64", "[square_sums]") {
  const int64_t size = GENERATE(0, 1, 15, 16, 255, 256, 257, 1024, 40001);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {size}, 1, -3, 3);
  const std::vector<double> sums = sums_of(x), values = doubles(x);
  for (size_t block = 0; block < sums.size(); ++block) {
    double expected = 0;
    const auto begin = static_cast<int64_t>(block) * 256;
    for (int64_t i = begin; i < std::min(begin + 256, size); ++i) {
      expected += std::pow(values[static_cast<size_t>(i)], 2);
    }
    REQUIRE(std::abs(sums[block] - expected) <= 1e-14 * expected);
  }
}

TEST_CASE("block_square_sums do not depend on shards or threads", "[square_sums][teams]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, {256 * 300}, 1);
  const ThreadCountRestorer restore;
  set_thread_count(1);
  const std::vector<double> all = sums_of(x);
  const std::vector<double> shard = sums_of(x.flat(256 * 7, 256 * 20));
  REQUIRE(std::memcmp(shard.data(), all.data() + 7, shard.size() * sizeof(double)) == 0);
  for (const int threads : {2, 3}) {
    set_thread_count(threads);
    const std::vector<double> again = sums_of(x);
    REQUIRE(std::memcmp(again.data(), all.data(), all.size() * sizeof(double)) == 0);
  }
}

TEST_CASE("block_square_sums may exceed the range of f32, and propagate NaN", "[square_sums]") {
  const Tensor x = Tensor::full({256}, 1e30f);
  REQUIRE(std::abs(sums_of(x)[0] / 256e60 - 1) < 1e-6);
  x.data<float>()[200] = NAN;
  REQUIRE(std::isnan(sums_of(x)[0]));
}

TEST_CASE("block_square_sums turns -0.0 into +0.0", "[square_sums]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const int64_t size = GENERATE(1, 256, 700, 40001);
  const int64_t zero = GENERATE(0, 255, 300, 699, 40000);
  if (zero >= size) return;
  const Tensor x = random_tensor_of(dtype, {size}, 3);
  std::vector<double> expected = doubles(x);
  expected[static_cast<size_t>(zero)] = 0;
  x.flat(zero, zero + 1).copy_from(rounded_to(dtype, Tensor::full({1}, -0.0f)));
  (void)sums_of(x);
  const std::vector<double> values = doubles(x);
  REQUIRE(values == expected);
  REQUIRE_FALSE(std::signbit(values[static_cast<size_t>(zero)]));
}

TEST_CASE("block_square_sums refuses invalid arguments", "[square_sums]") {
  std::vector<double> sums(2);
  REQUIRE_THROWS_WITH(
      kernels::block_square_sums(test_context(), std::span(sums), Tensor::empty({513})),
      "block_square_sums: room for 2 sums, expected 3");
}
