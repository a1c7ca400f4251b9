#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/check_gradient.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

TEST_CASE("add, element by element", "[add]") {
  const Shape shape = GENERATE(values<Shape>({{}, {0}, {1}, {17}, {3, 5}, {2, 1, 300}}));
  const Tensor a = random_tensor(shape, 1), b = random_tensor(shape, 2);
  const Tensor y = ops::add(a, b);
  REQUIRE(y.shape() == shape);
  for (int64_t i = 0; i < a.elements(); ++i) {
    REQUIRE(y.data<float>()[i] == a.data<float>()[i] + b.data<float>()[i]);
  }
}

TEST_CASE("add's gradient", "[add]") {
  const Tensor a = random_tensor({3, 5}, 1), b = random_tensor({3, 5}, 2);
  REQUIRE(check_gradient([](const auto& in) { return ops::add(in[0], in[1]); }, {a, b}));
  REQUIRE(check_gradient([](const auto& in) { return ops::add(in[0], in[0]); }, {a}));
  REQUIRE(check_gradient([&](const auto& in) { return ops::add(a, in[0]); }, {b}));
}

TEST_CASE("add in place, with any number of threads", "[add]") {
  REQUIRE(same_bits_for_any_threads([] {
    const Tensor a = random_tensor({40001}, 1), b = random_tensor({40001}, 2);
    const Tensor y = ops::add(a, b);
    kernels::add(current_context({}), a, a, b);
    REQUIRE(same_bits(a, y));
    return std::vector{y};
  }));
}

TEST_CASE("add says what is wrong", "[add]") {
  REQUIRE_THROWS_WITH(ops::add(random_tensor({2, 3}, 1), random_tensor({3, 2}, 1)),
                      "add: the second input has shape [3, 2], expected [2, 3]");
  REQUIRE_THROWS_WITH(ops::add(random_tensor({2}, 1), Tensor::zeros({2}, DType::i32)),
                      "add: the second input has dtype i32, expected f32");
}
