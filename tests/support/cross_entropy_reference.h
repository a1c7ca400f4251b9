// Mean softmax cross-entropy and its gradient in float64.
#pragma once

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

}  // namespace tessera::test
