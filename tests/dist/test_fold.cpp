// Tests that fold adds in fp32, rounds each sum to the accumulator's dtype, and starts from +0.0.
#include <cmath>

#include "dist/fold.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("fold adds in order and rounds after every contribution", "[fold]") {
  const int64_t size = GENERATE(0, 1, 17, 256, 300, 40001);
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const DType sum_dtype = GENERATE(DType::f32, DType::bf16);
  const Tensor accumulator = rounded_to(sum_dtype, Tensor::full({size}, 99));
  Tensor expected = Tensor::zeros({size});
  for (uint64_t part = 0; part < 4; ++part) {
    const Tensor contribution = random_tensor_of(dtype, {size}, part);
    kernels::fold(test_context(), accumulator, contribution, part == 0);
    const std::vector<double> added = doubles(contribution), before = doubles(expected);
    for (size_t i = 0; i < added.size(); ++i) {
      expected.data<float>()[i] = static_cast<float>(before[i]) + static_cast<float>(added[i]);
    }
    const std::vector<double> rounded_sum = doubles(rounded_to(sum_dtype, expected));
    for (size_t i = 0; i < added.size(); ++i) {
      expected.data<float>()[i] = static_cast<float>(rounded_sum[i]);
    }
  }
  REQUIRE(doubles(accumulator) == doubles(expected));
}

TEST_CASE("fold starts from +0.0", "[fold]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const DType sum_dtype = GENERATE(DType::f32, DType::bf16);
  const Tensor accumulator = rounded_to(sum_dtype, Tensor::full({300}, NAN));
  const Tensor contribution = rounded_to(dtype, Tensor::full({300}, -0.0f));
  kernels::fold(test_context(), accumulator, contribution, true);
  for (const double value : doubles(accumulator)) {
    REQUIRE(value == 0);
    REQUIRE_FALSE(std::signbit(value));
  }
}

TEST_CASE("fold's bits do not depend on the number of threads, or on where a range begins",
          "[fold][teams]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const DType sum_dtype = GENERATE(DType::f32, DType::bf16);
  const Tensor contribution = random_tensor_of(dtype, {40001}, 2);
  const auto folded = [&](int64_t begin, int64_t end) {
    const Tensor accumulator = random_tensor_of(sum_dtype, {40001}, 1).flat(begin, end);
    kernels::fold(test_context(), accumulator, contribution.flat(begin, end), false);
    return accumulator;
  };
  REQUIRE(same_bits_for_any_threads([&] { return std::vector{folded(0, 40001)}; }));
  REQUIRE(same_bits(folded(256 * 3 + 5, 20001), folded(0, 40001).flat(256 * 3 + 5, 20001)));
}

TEST_CASE("fold refuses wrong sizes and dtypes", "[fold]") {
  REQUIRE_THROWS_WITH(
      kernels::fold(test_context(), Tensor::empty({4}), Tensor::empty({5}), true),
      "fold: the contribution has 5 elements, expected 4");
  REQUIRE_THROWS_WITH(kernels::fold(test_context(), Tensor::empty({4}, DType::f16),
                                    Tensor::empty({4}), true),
                      "fold: the accumulator has dtype f16, expected f32 or bf16");
}
