// Compares rms_norm's results and gradients with float64. Bits must depend neither on threads nor
// on alignment.
#include <cmath>

#include "core/check_gradient.h"
#include "core/ops.h"
#include "core/ops/copy.h"
#include "core/ops/rms_norm.h"
#include "tests/support/catch.h"
#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {
namespace {

constexpr float epsilon = 1e-5f;

struct Inputs {
  Inputs(int64_t rows, int64_t channels, DType dtype)
      : x(random_tensor_of(dtype, {rows, channels}, 1, -2, 3)),
        weight(random_tensor_of(dtype, {channels}, 2, 0.5f, 1.5f)),
        dy(random_tensor_of(dtype, {rows, channels}, 4)) {}

  Tensor x, weight, dy;
};

struct Outputs {
  Tensor y, dx, dweight;
  std::vector<Tensor> all() const { return {y, dx, dweight}; }
};

Outputs run(const Inputs& in, bool input = true, bool weight = true) {
  const auto like = [](const Tensor& x) { return Tensor::empty(x.shape(), x.dtype()); };
  const Tensor rrms = Tensor::empty({in.x.size(0)});
  const Outputs out{like(in.x), input ? like(in.x) : Tensor(), weight ? like(in.weight) : Tensor()};
  kernels::rms_norm_forward(test_context(), out.y, rrms, in.x, in.weight, epsilon);
  kernels::rms_norm_backward(test_context(), out.dx, out.dweight, in.dy, in.x, rrms, in.weight);
  return out;
}

TEST_CASE("rms_norm against float64", "[rms_norm]") {
  const auto [rows, channels] = GENERATE(table<int64_t, int64_t>(
      {{0, 4}, {3, 0}, {1, 1}, {5, 16}, {3, 33}, {70, 128}, {600, 5}, {3, 2500}, {2, 9000}}));
  const DType dtype = GENERATE(from_range(float_dtypes()));
  CAPTURE(rows, channels, dtype_name(dtype));
  const Inputs in(rows, channels, dtype);
  const Values x = values_of(in.x), w = values_of(in.weight), dy = values_of(in.dy);
  const auto width = static_cast<size_t>(channels);
  Values y = x, dx = x, dweight(width, 0.0);
  for (size_t at = 0; at < x.size(); at += width) {
    double squares = 0, projection = 0;
    for (size_t i = 0; i < width; ++i) squares += x[at + i] * x[at + i];
    const double rrms = 1 / std::sqrt(squares / static_cast<double>(width) + double{epsilon});
    for (size_t i = 0; i < width; ++i) {
      y[at + i] = x[at + i] * rrms * w[i];
      dweight[i] += dy[at + i] * x[at + i] * rrms;
      projection += dy[at + i] * w[i] * x[at + i] * rrms / static_cast<double>(width);
    }
    for (size_t i = 0; i < width; ++i) {
      dx[at + i] = rrms * (dy[at + i] * w[i] - x[at + i] * rrms * projection);
    }
  }
  const Outputs out = run(in);
  CHECK(max_error(out.y, y) <= tolerance(dtype, 1, 5e-6));
  CHECK(max_error(out.dx, dx) <= tolerance(dtype, 1, 2e-5));
  CHECK(max_error(out.dweight, dweight) <= tolerance(dtype, 1, 2e-5));
}

TEST_CASE("rms_norm's gradient agrees with finite differences", "[rms_norm]") {
  const GradientCheckOptions options{.dtype = GENERATE(from_range(float_dtypes()))};
  for (const Shape& shape : {Shape{2, 3, 9}, Shape{1, 20}, Shape{17}, Shape{3, 1}}) {
    CAPTURE(shape);
    CHECK(check_gradient(
        [](const auto& in) { return ops::rms_norm(in[0], in[1], 0.1f); },
        {random_tensor(shape, 6, -2, 2), random_tensor({shape[-1]}, 2, 0.5f, 1.5f)}, options));
  }
}

TEST_CASE("rms_norm_backward computes only the gradients that are wanted", "[rms_norm]") {
  const Inputs in(37, 19, DType::f32);
  const Outputs all = run(in);
  CHECK(same_bits(run(in, true, false).dx, all.dx));
  CHECK(same_bits(run(in, false, true).dweight, all.dweight));
}

TEST_CASE("rms_norm's bits depend neither on threads nor on alignment", "[rms_norm]") {
  const DType dtype = GENERATE(from_range(float_dtypes()));
  const Inputs in(600, 130, dtype);
  REQUIRE(same_bits_for_any_threads([&] { return run(in).all(); }));
  // The bits must be equal if all inputs begin one element after an aligned address.
  const auto moved = [](const Tensor& tensor) {
    const Tensor room = Tensor::empty({tensor.elements() + 1}, tensor.dtype());
    const Tensor result = room.flat(1, tensor.elements() + 1).view(tensor.shape());
    kernels::copy(test_context(), result, tensor);
    return result;
  };
  Inputs other = in;
  for (Tensor* tensor : {&other.x, &other.weight, &other.dy}) *tensor = moved(*tensor);
  const std::vector<Tensor> expected = run(in).all(), actual = run(other).all();
  for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(actual[i], expected[i]));
}

TEST_CASE("rms_norm's result for a row does not depend on the other rows", "[rms_norm]") {
  const Inputs in(40, 70, GENERATE(from_range(float_dtypes())));
  const Tensor all = ops::rms_norm(in.x, in.weight),
               few = ops::rms_norm(in.x.rows(7, 12), in.weight);
  CHECK(same_bits(few, all.rows(7, 12)));
}

TEST_CASE("rms_norm of zeros is zero, with a gradient", "[rms_norm]") {
  const Tensor x = as_parameter(Tensor::full({2, 4}, 0)), weight = Tensor::full({4}, 2);
  const Tensor y = ops::rms_norm(x, weight, 0.25f);
  CHECK(values_of(y) == Values(8, 0.0));
  backward(ops::sum(y));
  CHECK(values_of(x.leaf()->gradient) == Values(8, 4.0));
}

TEST_CASE("rms_norm can be recomputed, and takes parameters gathered only while in use",
          "[rms_norm]") {
  const Tensor x = random_tensor({6, 8}, 1), weight = random_tensor({8}, 2, 0.5f, 1.5f);
  const auto gradients = [&](const Tensor& a, const Tensor& b) {
    const Tensor y = ops::rms_norm(a, b);
    CHECK(same_bits((*y.recompute())(), y));
    backward_from(y, random_tensor({6, 8}, 3));
    return std::vector{a.leaf()->gradient, b.leaf()->gradient};
  };
  GatheredParameter gathered_x(x), gathered_weight(weight);
  const auto expected = gradients(as_parameter(x), as_parameter(weight));
  const auto actual = gradients(gathered_x.tensor, gathered_weight.tensor);
  for (size_t i = 0; i < expected.size(); ++i) CHECK(same_bits(actual[i], expected[i]));
}

TEST_CASE("rms_norm refuses invalid arguments", "[rms_norm]") {
  const Tensor x = Tensor::full({2, 8}, 1);
  REQUIRE_THROWS_WITH(ops::rms_norm(x, Tensor::full({4}, 1)),
                      "rms_norm: weight has shape [4], expected [8]");
  REQUIRE_THROWS_WITH(ops::rms_norm(x, Tensor::empty({8}, DType::bf16)),
                      "rms_norm: weight has dtype bf16, expected f32");
  REQUIRE_THROWS_WITH(ops::rms_norm(Tensor::full({}, 1), Tensor::full({1}, 1)),
                      "rms_norm: x is a scalar, expected (..., C)");
}

}  // namespace
}  // namespace tessera::test
