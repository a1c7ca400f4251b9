#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/binary.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("mul, element by element", "[mul]") {
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {1}, {17}, {3, 5}, {2, 1, 300}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor a = random_tensor_of(dtype, shape, 1), b = random_tensor_of(dtype, shape, 2);
  const Tensor wide_a = widened(a), wide_b = widened(b), expected = Tensor::empty(shape);
  for (int64_t i = 0; i < a.elements(); ++i) {
    expected.data<float>()[i] = wide_a.data<float>()[i] * wide_b.data<float>()[i];
  }
  REQUIRE(same_bits(ops::mul(a, b), rounded_to(dtype, expected)));
}

TEST_CASE("mul's gradient", "[mul]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  const Tensor a = random_tensor({3, 5}, 1), b = random_tensor({3, 5}, 2);
  REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[1]); }, {a, b}, options));
  REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[0]); }, {a}, options));
  const auto with_a = [&](const auto& in) {
    return ops::mul(rounded_to(in[0].dtype(), a), in[0]);
  };
  REQUIRE(check_gradient(with_a, {b}, options));
}

TEST_CASE("mul in place, with any number of threads", "[mul]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads([&] {
    const Tensor a = random_tensor_of(dtype, {40001}, 1), b = random_tensor_of(dtype, {40001}, 2);
    const Tensor y = ops::mul(a, b);
    kernels::binary(test_context(), a, a, b, Binary::mul);
    REQUIRE(same_bits(a, y));
    return std::vector{y};
  }));
}

TEST_CASE("mul refuses invalid arguments", "[mul]") {
  REQUIRE_THROWS_WITH(
      ops::mul(random_tensor({2, 3}, 1), random_tensor({3, 2}, 1)),
      "mul: shapes [2, 3] and [3, 2] do not broadcast: dimension -2 has 2 and 3 elements");
  REQUIRE_THROWS_WITH(ops::mul(random_tensor({2}, 1), Tensor::zeros({2}, DType::i32)),
                      "mul: the second input has dtype i32, expected f32");
}
