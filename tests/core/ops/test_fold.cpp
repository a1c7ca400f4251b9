// fold is one fp32 addition an element, and starts from +0.0.
#include <cmath>

#include "core/kernels.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("fold adds in order", "[fold]") {
  const int64_t size = GENERATE(0, 1, 17, 256, 300, 40001);
  const Context context = current_context({});
  const Tensor accumulator = Tensor::full({size}, 99);
  std::vector<Tensor> parts;
  for (uint64_t i = 0; i < 4; ++i) parts.push_back(random_tensor({size}, i));
  for (size_t i = 0; i < 4; ++i) kernels::fold(context, accumulator, parts[i], i == 0);
  for (int64_t i = 0; i < size; ++i) {
    float expected = 0;
    for (const Tensor& part : parts) expected += part.data<float>()[i];
    REQUIRE(accumulator.data<float>()[i] == expected);
  }
}

TEST_CASE("fold starts from +0.0", "[fold]") {
  const Tensor accumulator = Tensor::full({300}, NAN);
  kernels::fold(current_context({}), accumulator, Tensor::full({300}, -0.0f), true);
  for (const float value : accumulator.values<float>()) {
    REQUIRE(value == 0.0f);
    REQUIRE_FALSE(std::signbit(value));
  }
}

TEST_CASE("fold's bits do not depend on the number of threads", "[fold]") {
  REQUIRE(same_bits_for_any_threads([] {
    const Tensor accumulator = random_tensor({40001}, 1);
    kernels::fold(current_context({}), accumulator, random_tensor({40001}, 2), false);
    return std::vector{accumulator};
  }));
}

TEST_CASE("fold says what is wrong", "[fold]") {
  REQUIRE_THROWS_WITH(
      kernels::fold(current_context({}), Tensor::empty({4}), Tensor::empty({5}), true),
      "fold: the contribution has 5 elements, expected 4");
}
