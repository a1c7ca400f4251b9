// Mean softmax cross-entropy and its gradient in float64, and logits that are large but exact.
#pragma once

#include "tests/support/precision.h"
#include "tests/support/reference.h"

namespace tessera::test {

struct CrossEntropyReference {
  double loss = 0;
  Values dlogits;  // the logits' gradient if the loss has the gradient `dloss`

  CrossEntropyReference(const Values& logits, const Tensor& targets, double dloss)
      : dlogits(logits.size()) {
    const auto target = targets.values<int32_t>();
    const size_t columns = logits.size() / target.size();
    const double rows = static_cast<double>(target.size());
    for (size_t row = 0; row < target.size(); ++row) {
      const double* in = logits.data() + row * columns;
      const double maximum = *std::max_element(in, in + columns);
      double sum = 0;
      for (size_t i = 0; i < columns; ++i) sum += std::exp(in[i] - maximum);
      const double logsumexp = maximum + std::log(sum);
      const auto hit = static_cast<size_t>(target[row]);
      loss += (logsumexp - in[hit]) / rows;
      for (size_t i = 0; i < columns; ++i) {
        const double probability = std::exp(in[i] - logsumexp);
        dlogits[row * columns + i] = (probability - (i == hit ? 1.0 : 0.0)) * dloss / rows;
      }
    }
  }
};

/// Returns a number to which integers in [0, 8) can be added without rounding in `dtype`. It is so
/// large that a loss is visibly wrong if it is computed as the difference of the rounded logsumexp
/// and a logit.
inline float large_shift(DType dtype) {
  return dtype == DType::f32 ? 8e6f : dtype == DType::f16 ? 1024.0f : 128.0f;
}

/// Returns logits whose values are random integers in [0, 8), the same in each call for a shape,
/// plus `shift`.
inline Tensor integer_logits(DType dtype, const Shape& shape, float shift) {
  const Tensor integers = random_indices(shape, 1, 8);
  const Tensor logits = Tensor::empty(shape);
  for (int64_t i = 0; i < logits.elements(); ++i) {
    logits.data<float>()[i] = static_cast<float>(integers.data<int32_t>()[i]) + shift;
  }
  return rounded_to(dtype, logits);
}

}  // namespace tessera::test
