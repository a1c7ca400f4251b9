#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/scale.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("scale, element by element", "[scale]") {
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {1}, {17}, {3, 5}, {40001}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(dtype, shape, 1);
  const Tensor y = ops::scale(x, -1.3f), expected = widened(x);
  for (float& value : expected.values<float>()) value *= -1.3f;
  REQUIRE(same_bits(y, rounded_to(dtype, expected)));
  kernels::scale(test_context(), x, x, -1.3f);  // in place
  REQUIRE(same_bits(x, y));
}

TEST_CASE("scale_by multiplies by a factor in memory, from any dtype to any other", "[scale]") {
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {17}, {40001}}));
  const DType from = GENERATE(from_range(float_dtypes()));
  const DType to = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(from, shape, 1), expected = widened(x);
  for (float& value : expected.values<float>()) value *= -1.3f;
  const Tensor y = Tensor::empty(shape, to), factor = Tensor::full({}, -1.3f);
  kernels::scale_by(test_context(), y, x, factor);
  REQUIRE(same_bits(y, rounded_to(to, expected)));
  kernels::scale_by(test_context(), x, x, factor);  // in place
  REQUIRE(same_bits(x, rounded_to(from, expected)));
}

TEST_CASE("scale's gradient", "[scale]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(check_gradient([](const auto& in) { return ops::scale(in[0], 0.7f); },
                         {random_tensor({3, 5}, 1)}, {.dtype = dtype}));
}

TEST_CASE("scale's bits do not depend on the number of threads", "[scale]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  REQUIRE(same_bits_for_any_threads(
      [&] { return std::vector{ops::scale(random_tensor_of(dtype, {40001}, 1), 0.7f)}; }));
}
