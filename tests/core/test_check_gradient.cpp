#include "core/check_gradient.h"

#include "core/ops.h"
#include "tests/support/catch.h"
#include "tests/support/tensors.h"

using namespace tessera;
using namespace tessera::test;

namespace {

/// Returns x * x. The backward multiplies the correct gradient by `factor`, at the first element if
/// `only_first` is true, otherwise at all elements.
Tensor square(const Tensor& x, float factor, bool only_first) {
  Tensor y = ops::mul(x.detach(), x.detach());
  return record("square", y, {x}, [=, x = saved(x)](const Tensor& dy, InputGradients& grads) {
    const Tensor dx = grads.destination(0);
    for (int64_t i = 0; i < x.elements(); ++i) {
      const float wrong = only_first && i > 0 ? 1.0f : factor;
      dx.data<float>()[i] = wrong * 2 * x.data<float>()[i] * dy.data<float>()[i];
    }
  });
}

GradientCheck check_square(float factor, bool only_first) {
  return check_gradient(
      [=](const std::vector<Tensor>& in) { return square(in[0], factor, only_first); },
      {random_tensor({3, 5}, 1, 0.5f, 1.5f)});
}

}  // namespace

TEST_CASE("check_gradient accepts a correct gradient", "[check_gradient]") {
  REQUIRE(check_square(1.0f, false));
}

TEST_CASE("check_gradient reports a planted wrong gradient", "[check_gradient]") {
  REQUIRE_FALSE(check_square(1.02f, false));
  REQUIRE_FALSE(check_square(-1.0f, false));
  REQUIRE_FALSE(check_square(0.0f, false));
  REQUIRE_FALSE(check_square(NAN, false));
  const GradientCheck one_element = check_square(1.1f, true);
  REQUIRE_FALSE(one_element);
  REQUIRE(one_element.element == 0);
}

TEST_CASE("check_gradient describes an element even if all errors are zero", "[check_gradient]") {
  // At x = 0, the finite difference of 2 * x has no rounding error.
  const auto twice = [](const std::vector<Tensor>& in) { return ops::scale(in[0], 2); };
  const GradientCheck check = check_gradient(twice, {Tensor::zeros({1})});
  REQUIRE(check.error == 0);
  CHECK(check.backward != 0);
  CHECK(check.backward == check.difference);
}

TEST_CASE("check_gradient reports a gradient that is missing", "[check_gradient]") {
  const auto operation = [](const std::vector<Tensor>& in) {
    return ops::add(in[0], in[1].detach());  // the second input gets no gradient
  };
  const GradientCheck check =
      check_gradient(operation, {random_tensor({4}, 1), random_tensor({4}, 2)});
  REQUIRE_FALSE(check);
  REQUIRE(check.input == 1);
}

TEST_CASE("check_gradient throws for a gradient of another dtype", "[check_gradient]") {
  const auto operation = [](const std::vector<Tensor>& in) {
    return record("f32_gradient", ops::scale(in[0].detach(), 2), {in[0]},
                  [](const Tensor& dy, InputGradients& grads) {
                    grads.pass(0, ops::scale(ops::convert(dy, DType::f32), 2));
                  });
  };
  const std::vector<Tensor> inputs{random_tensor({4}, 1)};
  CHECK(check_gradient(operation, inputs));
  CHECK_THROWS_WITH(check_gradient(operation, inputs, {.dtype = DType::bf16}),
                    Catch::Matchers::ContainsSubstring("the source is f32 [4], expected bf16"));
}

TEST_CASE("check_gradient restores its inputs", "[check_gradient]") {
  const Tensor x = random_tensor({7}, 3);
  const std::vector<float> values(x.values<float>().begin(), x.values<float>().end());
  REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[0]); }, {x}));
  REQUIRE(same_bits(x, Tensor::from<float>({7}, values)));
  REQUIRE_FALSE(x.requires_grad());
}
