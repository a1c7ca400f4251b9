#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/check_gradient.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("scale, element by element", "[scale]") {
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {1}, {17}, {3, 5}, {40001}}));
  const Tensor x = random_tensor(shape, 1);
  const Tensor y = ops::scale(x, -1.25f);
  REQUIRE(y.shape() == shape);
  for (int64_t i = 0; i < x.elements(); ++i) {
    REQUIRE(y.data<float>()[i] == -1.25f * x.data<float>()[i]);
  }
  kernels::scale(current_context({}), x, x, -1.25f);  // in place
  REQUIRE(same_bits(x, y));
}

TEST_CASE("scale's gradient", "[scale]") {
  REQUIRE(check_gradient([](const auto& in) { return ops::scale(in[0], 0.7f); },
                         {random_tensor({3, 5}, 1)}));
}
