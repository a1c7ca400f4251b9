#include "tests/support/check_gradient.h"

#include <cmath>

#include "core/autograd.h"
#include "core/ops.h"
#include "tests/support/precision.h"
#include "tests/support/tensors.h"

namespace tessera::test {
namespace {

using Operation = std::function<Tensor(const std::vector<Tensor>&)>;

/// Weights away from zero, of both signs.
Tensor contraction_weights(const Shape& shape) {
  Tensor weights = random_tensor(shape, 20, -1, 1);
  for (float& weight : weights.values<float>()) weight += weight < 0 ? -0.5f : 0.5f;
  return weights;
}

double contracted(const Operation& operation, const std::vector<Tensor>& inputs,
                  const Tensor& weights) {
  const NoGrad no_grad;
  const std::vector<double> y = doubles(operation(inputs));
  const std::vector<double> w = doubles(weights);
  double sum = 0;
  for (size_t i = 0; i < y.size(); ++i) sum += w[i] * y[i];
  return sum;
}

/// The derivative by one element, which is moved and put back.
double difference(const Operation& operation, const std::vector<Tensor>& inputs,
                  const Tensor& weights, float& element, float step) {
  const float before = element;
  const auto at = [&](float offset) {
    element = before + offset;
    return contracted(operation, inputs, weights);
  };
  const double near = at(step) - at(-step);
  const double far = at(2 * step) - at(-2 * step);
  element = before;
  return (8 * near - far) / (12 * static_cast<double>(step));
}

/// What backward() left: zeros where it left nothing, NaN where that is of another dtype.
std::vector<double> found_gradient(const Tensor& leaf) {
  const Tensor gradient = gradient_of(leaf);
  const auto elements = static_cast<size_t>(leaf.elements());
  if (!gradient.defined()) return std::vector<double>(elements, 0.0);
  if (gradient.dtype() != leaf.dtype()) return std::vector<double>(elements, std::nan(""));
  return doubles(gradient);
}

}  // namespace

GradientCheck check_gradient(const Operation& operation, std::vector<Tensor> inputs,
                             GradientCheckOptions options) {
  std::vector<Tensor> leaves;
  std::vector<Tensor> points;  // the same values in f32
  for (const Tensor& input : inputs) {
    const bool same = options.dtype == DType::f32;
    leaves.push_back(leaf(same ? input.detach() : rounded_to(options.dtype, input)));
    points.push_back(same ? leaves.back() : widened(leaves.back()));
  }
  const Tensor y = operation(leaves);
  const Tensor weights = rounded_to(y.dtype(), contraction_weights(y.shape()));
  backward(ops::sum(ops::mul(y, weights)));

  GradientCheck result{.tolerance = tolerance(options.dtype, options.roundings, options.tolerance)};
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto values = points[i].values<float>();
    const std::vector<double> actual = found_gradient(leaves[i]);
    std::vector<double> expected;
    double largest = 0.1;  // smaller derivatives drown in the rounding of the forward
    for (float& value : values) {
      expected.push_back(difference(operation, points, weights, value, options.step));
      largest = std::max(largest, std::abs(expected.back()));
    }
    for (size_t element = 0; element < values.size(); ++element) {
      const double error = std::abs(actual[element] - expected[element]) / largest;
      if (error <= result.error) continue;
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
             << check.backward << " by backward, " << check.difference
             << " by differences; error " << check.error << ", tolerance " << check.tolerance;
}

}  // namespace tessera::test
