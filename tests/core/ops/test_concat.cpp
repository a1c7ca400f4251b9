// Tests concat and split along any dimension: the position of every part, and gradients.
#include <algorithm>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

TEST_CASE("concat joins tensors along any dimension", "[concat]") {
  const Tensor a = Tensor::from<float>({2, 2}, {1, 2, 3, 4});
  const Tensor b = Tensor::from<float>({2, 1}, {5, 6}), c = Tensor::from<float>({1, 2}, {7, 8});
  CHECK(values_of(ops::concat({a, b}, 1)) == Values{1, 2, 5, 3, 4, 6});
  CHECK(values_of(ops::concat({a, b}, -1)) == Values{1, 2, 5, 3, 4, 6});
  CHECK(values_of(ops::concat({c, a}, 0)) == Values{7, 8, 1, 2, 3, 4});
  CHECK(ops::concat({c, a}, 0).shape() == Shape{3, 2});
  CHECK(values_of(ops::concat({a}, 0)) == values_of(a));
  CHECK(values_of(ops::concat({random_tensor({2, 0}, 1), b}, 1)) == Values{5, 6});
}

TEST_CASE("split undoes concat", "[concat]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Shape shape{3, 8, 5};
  for (const int dim : {0, 1, 2, -1}) {
    CAPTURE(dim);
    const Tensor x = random_tensor_of(dtype, shape, 1);
    const int64_t size = shape[dim];
    const std::vector<int64_t> sizes = {1, size - 2, 0, 1};
    const std::vector<Tensor> parts = ops::split(x, sizes, dim);
    REQUIRE(parts.size() == 4);
    for (size_t i = 0; i < parts.size(); ++i) CHECK(parts[i].shape()[dim] == sizes[i]);
    CHECK(same_bits(ops::concat(parts, dim), x));
  }
}

TEST_CASE("concat and split copy every dtype", "[concat]") {
  const auto join_and_cut = []<class T>(T) {
    const Tensor a = Tensor::from<T>({2, 1}, {1, 2}), b = Tensor::from<T>({2, 2}, {3, 4, 5, 6});
    const Tensor joined = ops::concat({a, b}, 1);
    CHECK(std::ranges::equal(joined.template values<T>(), std::vector<T>{1, 3, 4, 2, 5, 6}));
    CHECK(same_bits(ops::split(joined, {1, 2}, 1)[1], b));
  };
  join_and_cut(float{});
  join_and_cut(int32_t{});
  join_and_cut(int64_t{});
  join_and_cut(uint8_t{});
}

TEST_CASE("gradients of concat and split", "[concat]") {
  const Tensor a = random_tensor({3, 2, 2}, 1), b = random_tensor({3, 4, 2}, 2);
  CHECK(check_gradient(
      [](const auto& in) {
        return ops::concat({in[0], in[1], in[0]}, 1);
      },
      {a, b}));
  // The operation uses only one part of the split, and uses that part twice.
  const auto operation = [](const auto& in) {
    const auto parts = ops::split(in[0], {1, 2, 1}, 1);
    return parts[0] * parts[0] + ops::slice(in[1], 0, 3);
  };
  CHECK(check_gradient(operation, {b, random_tensor({4, 1, 2}, 3)}));
}

TEST_CASE("concat takes parameters that are gathered only while in use", "[concat]") {
  GatheredParameter a(random_tensor({2, 3}, 1));
  backward_from(ops::concat({a.tensor, random_tensor({1, 3}, 2)}, 0), random_tensor({3, 3}, 3));
  CHECK(values_of(a.gradient()) == values_of(random_tensor({3, 3}, 3).rows(0, 2)));
  CHECK(a.uses == 1);
}

TEST_CASE("concat and split refuse invalid arguments", "[concat]") {
  const Tensor a = random_tensor({2, 3}, 1);
  REQUIRE_THROWS_WITH(ops::concat({}, 1), "concat: no tensors are given");
  REQUIRE_THROWS_WITH(ops::concat({a}, 2), "concat: there is no dimension 2 in shape [2, 3]");
  REQUIRE_THROWS_WITH(ops::concat({a, random_tensor({3, 2}, 1)}, 0),
                      "concat: a tensor has shape [3, 2], expected that of the first, [2, 3], "
                      "except in dimension 0");
  REQUIRE_THROWS_WITH(ops::concat({a, rounded_to(DType::bf16, a)}, 0),
                      "concat: a tensor has dtype bf16, expected f32");
  REQUIRE_THROWS_WITH(ops::split(a, {1, 1}, 1), "split: sizes add up to 2, expected 3");
  REQUIRE_THROWS_WITH(ops::split(a, {4, -1}, 1), "split: a size is -1, expected at least 0");
}

}  // namespace
}  // namespace tessera::test
