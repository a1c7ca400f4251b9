#include "core/ops/convert.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

TEST_CASE("convert rounds each element to the nearest value", "[convert]") {
  const int64_t size = GENERATE(0, 1, 17, 256, 300, 40001);
  const DType from = GENERATE(from_range(float_dtypes()));
  const DType to = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(from, {size}, 1, -100, 100);
  const Tensor y = ops::convert(x, to);
  REQUIRE(y.dtype() == to);
  Tensor wide = Tensor::empty({size});
  const std::vector<double> values = doubles(x);
  for (size_t i = 0; i < values.size(); ++i) {
    wide.data<float>()[i] = static_cast<float>(values[i]);
  }
  CHECK(same_bits(y, rounded_to(to, wide)));
}

TEST_CASE("convert to the same dtype changes no bit", "[convert]") {
  const Tensor x = random_tensor_of(DType::bf16, {3, 4}, 1);
  CHECK(ops::convert(x, DType::bf16).raw() == x.raw());
  const Tensor y = Tensor::zeros({12}, DType::bf16);
  kernels::convert(test_context(), y, x);
  CHECK(same_bits(y.view({3, 4}), x));
}

TEST_CASE("the gradient of convert is converted back", "[convert]") {
  const DType from = GENERATE(from_range(float_dtypes()));
  const DType to = GENERATE(from_range(float_dtypes()));
  const Tensor x = as_parameter(random_tensor_of(from, {5, 7}, 1));
  const Tensor dy = random_tensor_of(to, {5, 7}, 2);
  const Tensor weighted = ops::mul(ops::convert(x, to), dy);
  backward(ops::sum(weighted));
  const Tensor dx = x.leaf()->gradient;
  REQUIRE(dx.dtype() == from);
  CHECK(same_bits(dx, ops::convert(dy, from)));
}

TEST_CASE("convert's bits do not depend on the number of threads or on where a range begins",
          "[convert]") {
  const DType from = GENERATE(from_range(float_dtypes()));
  const DType to = GENERATE(from_range(float_dtypes()));
  const Tensor x = random_tensor_of(from, {256 * 201}, 1);
  CHECK(same_bits_for_any_threads([&] { return std::vector{ops::convert(x, to)}; }));
  const Tensor whole = ops::convert(x, to);
  const Tensor part = ops::convert(x.flat(1003, 40000), to);
  CHECK(same_bits(part, whole.flat(1003, 40000)));
}

TEST_CASE("convert refuses invalid arguments", "[convert]") {
  CHECK_THROWS_WITH(
      kernels::convert(test_context(), Tensor::empty({4}, DType::bf16), Tensor::empty({5})),
      "convert: the source has 5 elements, expected 4");
  CHECK_THROWS_WITH(ops::convert(Tensor::empty({4}), DType::i32),
                    "convert: dtype i32 is not supported, expected f32, bf16 or f16");
}

}  // namespace
}  // namespace tessera::test
