#include "core/ops/fill.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("fill sets every element and no other", "[fill]") {
  const int64_t size = GENERATE(0, 1, 17, 256, 40001);
  const Tensor room = Tensor::full({size + 2}, 5);
  kernels::fill(test_context(), room.flat(1, size + 1), -0.5f);
  const auto values = room.values<float>();
  REQUIRE(values.front() == 5);
  REQUIRE(values.back() == 5);
  for (const float value : values.subspan(1, static_cast<size_t>(size))) REQUIRE(value == -0.5f);
}

TEST_CASE("fill refuses invalid arguments", "[fill]") {
  REQUIRE_THROWS_WITH(kernels::fill(test_context(), Tensor::zeros({2}, DType::i32), 1.0f),
                      Catch::Matchers::ContainsSubstring("fill: dtype i32 is not supported"));
}
