// Shared by cross_entropy with and without weights: the check of the inputs, and the gradient of
// one row.
#pragma once

#include <cstdint>

#include "core/cpu/vector_math.h"
#include "core/half.h"
#include "core/ops/cross_entropy.h"
#include "core/tensor.h"

namespace tessera::ops {

/// Throws unless logits are (..., V) and targets are i32 (...), with at least one row and V > 0.
void check_cross_entropy(const Tensor& logits, const Tensor& targets);

}  // namespace tessera::ops

namespace tessera::cpu {

/// out = (softmax(x) - onehot(target)) * factor, with the softmax computed from the row's
/// normalizer. out may be x.
template <class D, class T>
void cross_entropy_row_gradient(D* out, const T* x, int64_t columns, int32_t target,
                                const Normalizer& normalizer, float factor) {
  const float maximum = normalizer.maximum, log_sum = normalizer.log_sum;
  // Computed before the loop, which may overwrite x[target].
  const float hit = (exp_f32((float(x[target]) - maximum) - log_sum) - 1.0f) * factor;
#pragma omp simd
  for (int64_t i = 0; i < columns; ++i) {
    out[i] = rounded<D>(exp_f32((float(x[i]) - maximum) - log_sum) * factor);
  }
  out[target] = D(hit);
}

}  // namespace tessera::cpu
