#include "tests/support/check_gradient.h"

#include <cmath>

#include "core/autograd.h"
#include "core/ops.h"
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

}  // namespace

GradientCheck check_gradient(const Operation& operation, std::vector<Tensor> inputs,
                             GradientCheckOptions options) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(leaf(input.detach()));
  const Tensor y = operation(leaves);
  const Tensor weights = contraction_weights(y.shape());
  backward(ops::sum(ops::mul(y, weights)));

  GradientCheck result{.tolerance = options.tolerance};
  for (size_t i = 0; i < leaves.size(); ++i) {
    const auto values = leaves[i].values<float>();
    const Tensor gradient = gradient_of(leaves[i]);
    std::vector<double> expected;
    double largest = 0.1;  // smaller derivatives drown in the rounding of the forward
    for (float& value : values) {
      expected.push_back(difference(operation, leaves, weights, value, options.step));
      largest = std::max(largest, std::abs(expected.back()));
    }
    for (size_t element = 0; element < values.size(); ++element) {
      const double actual = gradient.defined() ? gradient.values<float>()[element] : 0;
      const double error = std::abs(actual - expected[element]) / largest;
      if (error <= result.error) continue;
      result.error = std::isnan(error) ? HUGE_VAL : error;
      result.input = i;
      result.element = static_cast<int64_t>(element);
      result.backward = actual;
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
