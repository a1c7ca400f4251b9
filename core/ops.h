// The operations, one line and a contract each. Every one is differentiable in its tensor
// arguments, checks their shapes, and throws `Error` naming the expected and the actual.
// B batch, T tokens, C channels, V vocabulary, H heads; (..., C) is any number of leading
// dimensions, R their product.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/ops/options.h"
#include "core/tensor.h"

namespace tessera::ops {

/// Element by element, of one dtype, broadcast as in NumPy: shapes are aligned at their last
/// dimensions, and a dimension of 1, or one that is missing, is repeated. A gradient is summed over
/// what was repeated. Where inputs of maximum or minimum are equal each gets half of it.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// One where it is so, else zero, in the inputs' dtype; without a gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
/// a where the mask is not zero, else b, all broadcast. What is not taken may be infinite or NaN:
/// it leaves no trace in the result nor, as zero, in gradients. (A taken -0 becomes +0.)
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);

/// Element by element, any shape. (core/ops/expressions.h says which keep x for backward, which y.)
Tensor neg(const Tensor& x);
Tensor exp(const Tensor& x);
Tensor log(const Tensor& x);
Tensor sqrt(const Tensor& x);
Tensor rsqrt(const Tensor& x);
Tensor reciprocal(const Tensor& x);
Tensor square(const Tensor& x);
Tensor abs(const Tensor& x);
Tensor tanh(const Tensor& x);
Tensor sigmoid(const Tensor& x);
Tensor silu(const Tensor& x);  // x sigmoid(x)
Tensor softplus(const Tensor& x);  // log(1 + exp(x))
Tensor add(const Tensor& x, float number);
Tensor scale(const Tensor& x, float factor);
Tensor pow(const Tensor& x, float exponent);           // NaN where std::pow is NaN
Tensor clamp(const Tensor& x, float low, float high);  // no gradient where x is outside

Tensor sum(const Tensor& x);                          // -> f32 scalar []
Tensor mean(const Tensor& x);                         // -> f32 scalar []; x not empty
/// Over the given dimensions, of which -1 is the last one; they go, or with `keep` become 1. Of x's
/// dtype, summed in f64.
Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keep = false);
Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// The largest element over dimensions given as for sum; NaN where there is one. Equal maxima share
/// the gradient equally.
Tensor max(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// log(sum(exp(x))) over dimensions given as for sum, without overflow; of x's dtype. Keeps x.
Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// exp(x) / sum(exp(x)), summed over all of the given dimensions together, and its logarithm. Of
/// x's shape and dtype. Both keep their result, which is what their gradients are made from.
Tensor softmax(const Tensor& x, const std::vector<int>& dims);
Tensor log_softmax(const Tensor& x, const std::vector<int>& dims);
Tensor transpose(const Tensor& x);                    // last two dimensions, a copy
Tensor convert(const Tensor& x, DType dtype);         // f32, bf16, f16; x itself where it is that

/// Both share the memory of x, but copy that of a parameter, which may go.
Tensor reshape(const Tensor& x, const Shape& shape);        // equal number of elements
Tensor slice(const Tensor& x, int64_t begin, int64_t end);  // rows of the leading dimension

/// Dimension i of the result is dimension dims[i] of x, of which -1 is the last one. A copy.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
/// Along dimension `dim`, of which -1 is the last one; the others are equal. Copies.
Tensor concat(const std::vector<Tensor>& parts, int dim);
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim);

/// (..., m, k) x (..., k, n) -> (..., m, n); leading dimensions are broadcast as above.
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

/// (..., C) -> (..., C): x / sqrt(mean(x^2) + epsilon) * weight, the mean over the last dimension
/// (Zhang and Sennrich, arXiv:1910.07467).
Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon = 1e-5f);

struct ResidualNorm {
  Tensor sum;         // x + residual
  Tensor normalized;  // layer_norm(sum)
};
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 const Tensor& bias, float epsilon = 1e-5f);

/// tokens i32 (...), table (V, C) -> (..., C). With `positions` (>= T, C) tokens are (B, T), and
/// row t is added. Throws for a token outside [0, V).
Tensor embedding(const Tensor& tokens, const Tensor& table, const Tensor& positions = {});

/// Packed qkv (B, T, 3C) -> (B, T, C): softmax(q k^T / sqrt(C/H), causal) v for each head.
/// Flash attention's recurrence (Dao et al., arXiv:2205.14135): rows of scores in tiles.
Tensor causal_attention(const Tensor& qkv, int64_t heads);

/// Sums of bags of rows of table (V, C): y (B, C), where y[b] is the f32 sum, in order, of rows
/// indices[offsets[b]] up to indices[offsets[b + 1]], zero of none, times scale[b] where given.
/// indices i32 (L) and offsets i32 (B + 1); scale f32 (B) takes no gradient. Indices behind the
/// last offset are never read, so batches of any bags have one size. Throws for one outside [0, V).
Tensor embedding_bag(const Tensor& indices, const Tensor& offsets, const Tensor& table,
                     const Tensor& scale = {});

/// Along dimension `dim`, of which -1 is the last one, with index i32 in [0, x.size(dim)): else it
/// throws. y[.., j, ..] = x[.., index[j], ..], index (n).
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// y[.., j, ..] = x[.., index[.., j, ..], ..]; index and y have the shape of x but for `dim`.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// x, and added to x[.., index[.., j, ..], ..] source[.., j, ..], in order of j and in f32, rounded
/// once. index and source have the shape of x but for `dim`.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

enum class RotaryPairs {
  halves,      // elements i and i + D/2, as in GPT-NeoX and Llama
  interleaved  // elements 2i and 2i + 1, as in the paper
};
struct RotaryOptions {
  float base = 10000;
  RotaryPairs pairs = RotaryPairs::halves;
  int64_t offset = 0;  // added to positions
};
/// x (B, T, H, D), D even: pair i of a head at position p is turned by the angle p base^(-2i/D) (Su
/// et al., arXiv:2104.09864), which is computed in f64. positions i32 (T) or (B, T); else 0, 1, ...
Tensor rotary(const Tensor& x, const Tensor& positions = {}, RotaryOptions options = {});

struct AttentionOptions {
  bool causal = false;
  float scale = 0;  // of the scores; 0: 1 / sqrt(D)
};
/// q (B, T, H, D), k and v (B, S, G, D) -> (B, T, H, D): softmax(scale q k^T) v for each head h of
/// H, a multiple of G, which shares k and v of head h / (H / G). Causal: query t sees the keys up
/// to t + S - T. Backward keeps the inputs, the result and an f32 (B, H, T); no (T, S) scores are
/// kept (core/ops/attention.h has the workspace).
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options = {});

/// Zeroes elements with `probability` in [0, 1) and scales the rest by 1 / (1 - probability).
/// Keyed by (seed, step, sample, layer, element) of `dropout_state()`; dimension 0 is the sample.
Tensor dropout(const Tensor& x, float probability, uint64_t layer);

/// Losses, f32 scalars []: means over the elements that both inputs are broadcast to.
Tensor mse_loss(const Tensor& a, const Tensor& b);  // (a - b)^2
/// -(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) of logits x and targets t in [0, 1].
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets);
/// max(0, 1 - t x) of scores x and targets t, which are -1 or 1.
Tensor hinge_loss(const Tensor& scores, const Tensor& targets);

/// a . b / (max(|a|, epsilon) max(|b|, epsilon)) over dimension `dim`, which goes; a and b have
/// equally many elements there, and are broadcast in the others. Of a's dtype, computed in f32.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = -1, float epsilon = 1e-8f);
/// 1 - cos(a, b) where a target is 1, max(0, cos(a, b) - margin) where it is -1, with the cosine
/// over the last dimension: a and b (..., C), targets (...), all of one dtype.
Tensor cosine_loss(const Tensor& a, const Tensor& b, const Tensor& targets, float margin = 0);

/// Mean over rows of -log softmax(logits)[target]: logits (..., V), targets i32 (...) -> scalar [].
Tensor cross_entropy(const Tensor& logits, const Tensor& targets);

struct CrossEntropyOptions {
  Tensor class_weights = {};            // f32 (V), without a gradient; undefined: 1
  std::optional<int32_t> ignored = {};  // its rows take no part; may be outside [0, V)
};
/// The sum of the rows' losses, each times the weight of its target, over the sum of these weights.
/// Throws where the weights add up to zero, as where every row is ignored. The mean is over the
/// rows of one call: where micro-batches have unequal weights, their mean is not that of the whole.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options);

/// cross_entropy(linear(x, weight [V, C]), targets) in chunks of `chunk_rows` rows; 0: of as many
/// as suit the device (core/ops/linear_cross_entropy.h). Every number has bits of its own.
Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            int64_t chunk_rows = 0);

}  // namespace tessera::ops

namespace tessera {

inline Tensor operator+(const Tensor& a, const Tensor& b) { return ops::add(a, b); }
inline Tensor operator-(const Tensor& a, const Tensor& b) { return ops::sub(a, b); }
inline Tensor operator*(const Tensor& a, const Tensor& b) { return ops::mul(a, b); }
inline Tensor operator/(const Tensor& a, const Tensor& b) { return ops::div(a, b); }
inline Tensor operator-(const Tensor& x) { return ops::neg(x); }

inline Tensor operator+(const Tensor& x, float number) { return ops::add(x, number); }
inline Tensor operator+(float number, const Tensor& x) { return ops::add(x, number); }
inline Tensor operator-(const Tensor& x, float number) { return ops::add(x, -number); }
inline Tensor operator-(float number, const Tensor& x) { return ops::add(ops::neg(x), number); }
inline Tensor operator*(const Tensor& x, float factor) { return ops::scale(x, factor); }
inline Tensor operator*(float factor, const Tensor& x) { return ops::scale(x, factor); }
/// x times the reciprocal of the divisor, which is rounded.
inline Tensor operator/(const Tensor& x, float divisor) { return ops::scale(x, 1 / divisor); }
inline Tensor operator/(float number, const Tensor& x) {
  return ops::scale(ops::reciprocal(x), number);
}

}  // namespace tessera
