#include "core/check_gradient.h"

#include <algorithm>
#include <cmath>
#include <memory>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/random.h"

namespace tessera {
namespace {

using Operation = std::function<Tensor(const std::vector<Tensor>&)>;

std::vector<double> doubles(const Tensor& x) {
  std::vector<double> values;
  const Tensor here = x.to_host();
  visit_float(here.dtype(), "check_gradient", [&]<class T>() {
    for (const T value : here.values<T>()) values.push_back(double{float(value)});
  });
  return values;
}

/// Returns the weights with which the output's elements are summed to a scalar: random numbers of
/// both signs, at least 0.5 in magnitude, so that every output element changes the scalar.
Tensor contraction_weights(const Shape& shape, Device device) {
  const Tensor weights = Tensor::empty(shape, DType::f32, Device{});
  RandomStream stream(20, "check_gradient", 0);
  for (float& weight : weights.values<float>()) {
    const float drawn = 2 * stream.uniform() - 1;
    weight = drawn + (drawn < 0 ? -0.5f : 0.5f);
  }
  return weights.to(device);
}

Tensor leaf_of(const Tensor& x, DType dtype) {
  const NoGrad no_grad;
  const Tensor rounded = dtype == DType::f32 ? x.detach() : ops::convert(x, dtype);
  auto end = std::make_shared<Leaf>();
  end->name = "input";
  Tensor leaf = rounded;
  leaf.set_leaf(std::move(end));
  return leaf;
}

/// The f32 forward, contracted to a scalar, as a function of one element of one input.
class Contraction {
 public:
  Contraction(const Operation& operation, const std::vector<Tensor>& leaves, const Tensor& weights)
      : operation_(operation), weights_(doubles(weights)) {
    const NoGrad no_grad;
    for (const Tensor& leaf : leaves) {
      // For an f32 leaf, convert() returns its argument, so `point` is the caller's memory. This is
      // intended: the operation may also read the caller's tensor (for instance as a parameter of a
      // layer), and must see the changed elements.
      const Tensor point = ops::convert(leaf.detach(), DType::f32);
      points_.push_back(point);
      here_.push_back(point.device().is_cpu() ? point : point.to_host());
    }
  }

  /// Returns the derivative with respect to one element, which is changed in place and restored.
  double derivative(size_t input, size_t element, float step) {
    const float before = here_[input].values<float>()[element];
    const auto at = [&](float offset) { return with(input, element, before + offset); };
    const double near = at(step) - at(-step);
    const double far = at(2 * step) - at(-2 * step);
    move(input, element, before);
    return (8 * near - far) / (12 * static_cast<double>(step));
  }

 private:
  void move(size_t input, size_t element, float value) {
    here_[input].values<float>()[element] = value;
    if (!points_[input].device().is_cpu()) points_[input].copy_from(here_[input]);
  }
  double with(size_t input, size_t element, float value) {
    move(input, element, value);
    const NoGrad no_grad;
    const std::vector<double> y = doubles(operation_(points_));
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += weights_[i] * y[i];
    return sum;
  }

  const Operation& operation_;
  std::vector<double> weights_;
  std::vector<Tensor> points_;  // f32
  std::vector<Tensor> here_;    // points_, readable on the host
};

/// Returns the leaf's gradient after backward(): zeros if the leaf got no gradient.
std::vector<double> found_gradient(const Tensor& leaf) {
  const Tensor gradient = leaf.leaf()->gradient;
  if (gradient.defined()) return doubles(gradient);
  return std::vector<double>(static_cast<size_t>(leaf.elements()), 0.0);
}

/// Returns the allowed error: options.tolerance plus the error of options.roundings roundings to
/// options.dtype.
double tolerance_of(const GradientCheckOptions& options) {
  const double roundoff = options.dtype == DType::bf16  ? 0x1p-8
                          : options.dtype == DType::f16 ? 0x1p-11
                                                        : 0;
  return options.tolerance + options.roundings * roundoff;
}

}  // namespace

GradientCheck check_gradient(const Operation& operation, const std::vector<Tensor>& inputs,
                             GradientCheckOptions options) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(leaf_of(input, options.dtype));
  const Tensor y = operation(leaves);
  const Tensor weights = [&] {
    const NoGrad no_grad;
    return ops::convert(contraction_weights(y.shape(), y.device()), y.dtype());
  }();
  backward(ops::sum(ops::mul(y, weights)));

  GradientCheck result{.tolerance = tolerance_of(options)};
  bool is_first = true;  // the result describes an element even if all errors are 0
  Contraction contraction(operation, leaves, weights);
  for (size_t i = 0; i < leaves.size(); ++i) {
    const std::vector<double> actual = found_gradient(leaves[i]);
    std::vector<double> expected;
    // Errors are relative to the input's largest derivative, or to 0.1 if 0.1 is larger. A smaller
    // divisor would magnify the errors of `expected` that the forward's roundings cause.
    double largest = 0.1;
    for (size_t element = 0; element < actual.size(); ++element) {
      expected.push_back(contraction.derivative(i, element, options.step));
      largest = std::max(largest, std::abs(expected.back()));
    }
    for (size_t element = 0; element < actual.size(); ++element) {
      const double error = std::abs(actual[element] - expected[element]) / largest;
      if (!is_first && error <= result.error) continue;
      is_first = false;
      result.error = std::isnan(error) ? HUGE_VAL : error;
      result.input = i;
      result.element = static_cast<int64_t>(element);
      result.backward = actual[element];
      result.difference = expected[element];
    }
  }
  return result;
}

std::ostream& operator<<(std::ostream& out, const GradientCheck& check) {
  return out << "gradient of input " << check.input << " at element " << check.element << ": "
             << check.backward << " by backward, " << check.difference << " by differences; error "
             << check.error << ", tolerance " << check.tolerance;
}

}  // namespace tessera
