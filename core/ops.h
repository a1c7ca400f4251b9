// The operations, one line and a contract each. Every one is differentiable in its tensor
// arguments, checks their shapes, and throws `Error` naming the expected and the actual.
// B batch, T tokens, C channels, V vocabulary, H heads; (..., C) is any number of leading
// dimensions, R their product.
#pragma once

#include <cstdint>
#include <utility>

#include "core/ops/options.h"
#include "core/tensor.h"

namespace tessera::ops {

Tensor add(const Tensor& a, const Tensor& b);         // equal shapes
Tensor mul(const Tensor& a, const Tensor& b);         // equal shapes, element by element
Tensor scale(const Tensor& x, float factor);
Tensor sum(const Tensor& x);                          // -> f32 scalar []
Tensor mean(const Tensor& x);                         // -> f32 scalar []; x not empty
Tensor transpose(const Tensor& x);                    // last two dimensions, a copy
Tensor convert(const Tensor& x, DType dtype);         // f32, bf16, f16; x itself where it is that

/// Both share the memory of x, but copy that of a parameter, which may go.
Tensor reshape(const Tensor& x, const Shape& shape);        // equal number of elements
Tensor slice(const Tensor& x, int64_t begin, int64_t end);  // rows of the leading dimension

/// (..., m, k) x (..., k, n) -> (..., m, n); leading dimensions equal, or b 2-D.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);

struct LinearOptions {
  WeightLayout layout = WeightLayout::out_in;
  Activation activation = Activation::none;
};
/// (..., in) -> (..., out); bias (out) may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              LinearOptions options = {});

Tensor gelu(const Tensor& x);  // tanh form

/// (..., C) -> (..., C), normalised over the last dimension.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon = 1e-5f);

struct ResidualNorm {
  Tensor sum;         // x + residual
  Tensor normalized;  // layer_norm(sum)
};
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 const Tensor& bias, float epsilon = 1e-5f);

/// tokens i32 (B, T), table (V, C) -> (B, T, C). With `positions` (>= T, C) row t is added.
/// Throws for a token outside [0, V).
Tensor embedding(const Tensor& tokens, const Tensor& table, const Tensor& positions = {});

/// Packed qkv (B, T, 3C) -> (B, T, C): softmax(q k^T / sqrt(C/H), causal) v for each head.
/// Flash attention's recurrence (Dao et al., arXiv:2205.14135): rows of scores in tiles.
Tensor causal_attention(const Tensor& qkv, int64_t heads);

/// Zeroes elements with `probability` in [0, 1) and scales the rest by 1 / (1 - probability).
/// Keyed by (seed, step, sample, layer, element) of `dropout_state()`; dimension 0 is the sample.
Tensor dropout(const Tensor& x, float probability, uint64_t layer);

/// Mean over rows of -log softmax(logits)[target]: logits (..., V), targets i32 (...) -> scalar [].
Tensor cross_entropy(const Tensor& logits, const Tensor& targets);

/// cross_entropy(linear(x, weight [V, C]), targets) in chunks of `chunk_rows` rows; 0: of as many
/// as suit the device (core/ops/linear_cross_entropy.h). Every number has bits of its own.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            int64_t chunk_rows = 0);

}  // namespace tessera::ops
