// The operations, each with a short contract. core/image_ops.h and core/table_ops.h declare more
// operations.
// Every operation checks the shapes of its tensor arguments. If shapes do not fit, the operation
// throws `Error` with the expected and the actual shape. Every operation is differentiable with
// respect to its floating-point tensors, unless its comment says otherwise. Some comments say that
// an operation throws for certain values of a tensor, such as an index outside a range. On the CPU,
// the operation itself then throws. On CUDA, the next synchronisation throws (core/cuda/fault.h),
// but a lookup in a row-sparse table may throw itself.
//
// In shapes, B is the batch, T tokens, C channels, V the vocabulary and H attention heads. (..., C)
// has any number of leading dimensions.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "core/ops/options.h"
#include "core/tensor.h"

namespace tessera::ops {

/// Elementwise on two tensors of one dtype, broadcast as in NumPy: shapes are aligned at their last
/// dimensions, and a dimension that is 1 or missing is repeated. A gradient is summed over repeated
/// dimensions. If maximum or minimum compares two equal elements, each gets half of the gradient.
Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
/// Comparisons return 1 for true and 0 for false, in the inputs' dtype. They have no gradient.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
/// Chooses the element of a where the mask is not zero, else the element of b. mask, a and b have
/// one dtype and are broadcast. The gradient of the mask is zero. An element that is not chosen may
/// be infinite or NaN: it does not affect the result, and its gradient is zero. A chosen -0 becomes
/// +0.
Tensor where(const Tensor& mask, const Tensor& a, const Tensor& b);

/// Elementwise, for any shape. core/ops/expressions.h says which of these operations keep x or the
/// result for backward.
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
Tensor clamp(const Tensor& x, float low, float high);  // the gradient outside [low, high] is 0

Tensor sum(const Tensor& x);                          // -> f32 scalar []
Tensor mean(const Tensor& x);                         // -> f32 scalar []; x not empty
/// Sum and mean over the given dimensions; -1 is the last dimension. The dimensions are removed
/// from the result's shape, or become 1 with `keep`. The result has x's dtype and is summed in f64.
Tensor sum(const Tensor& x, const std::vector<int>& dims, bool keep = false);
Tensor mean(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// The largest element over the given dimensions, with `dims` and `keep` as in sum; NaN if an
/// element is NaN. Equal maxima share the gradient equally.
Tensor max(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// log(sum(exp(x))) over the given dimensions, without overflow, with `dims` and `keep` as in sum.
/// The result has x's dtype. Keeps x for backward.
Tensor logsumexp(const Tensor& x, const std::vector<int>& dims, bool keep = false);
/// softmax is exp(x) / sum(exp(x)), with the sum over all of the given dimensions together.
/// log_softmax is the logarithm of softmax. The results have x's shape and dtype. Both operations
/// keep their result for backward. If all elements of a sum are -infinity, all become NaN. An
/// element +infinity becomes NaN. In PyTorch the other elements of its sum become NaN too; here
/// they become NaN or 0 in softmax, and -infinity in log_softmax.
Tensor softmax(const Tensor& x, const std::vector<int>& dims);
Tensor log_softmax(const Tensor& x, const std::vector<int>& dims);
Tensor transpose(const Tensor& x);                    // a copy with the last two dimensions swapped
Tensor convert(const Tensor& x, DType dtype);         // f32, bf16, f16; x itself if it has `dtype`

/// reshape and slice share the memory of x. If x is a parameter they copy it, because a parameter
/// may have no memory between its uses (core/autograd.h).
Tensor reshape(const Tensor& x, const Shape& shape);        // equal number of elements
Tensor slice(const Tensor& x, int64_t begin, int64_t end);  // [begin, end) of dimension 0

/// Returns a copy of x whose dimension i is dimension dims[i] of x; -1 is the last dimension.
Tensor permute(const Tensor& x, const std::vector<int>& dims);
/// concat joins parts along dimension `dim`, and split cuts x along `dim`; -1 is the last
/// dimension. All parts have equal sizes in the other dimensions. Both operations copy.
Tensor concat(const std::vector<Tensor>& parts, int dim);
std::vector<Tensor> split(const Tensor& x, const std::vector<int64_t>& sizes, int dim);

/// (..., m, k) x (..., k, n) -> (..., m, n); leading dimensions are broadcast as in NumPy. a is
/// (..., k, m) with `transpose_a`, and b is (..., n, k) with `transpose_b`.
Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a = false, bool transpose_b = false);

struct LinearOptions {
  WeightLayout layout = WeightLayout::out_in;
  Activation activation = Activation::none;
};
/// (..., in) -> (..., out); bias (out) may be undefined.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias,
              LinearOptions options = {});

Tensor gelu(const Tensor& x);  // tanh approximation

/// (..., C) -> (..., C), normalised over the last dimension. On CUDA, a row of equal elements far
/// from zero, such as 1,000 elements of 1000.1, can become up to about 0.1 instead of 0 (before
/// weight and bias), because its mean is inexact. The CPU kernels correct the mean of such rows.
Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon = 1e-5f);

/// (..., C) -> (..., C): x / sqrt(mean(x^2) + epsilon) * weight, with the mean over the last
/// dimension (Zhang and Sennrich, arXiv:1910.07467).
Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon = 1e-5f);

struct ResidualNorm {
  Tensor sum;         // x + residual
  Tensor normalized;  // layer_norm(sum)
};
ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 const Tensor& bias, float epsilon = 1e-5f);

/// tokens i32 (...), table (V, C) -> (..., C). If `positions` (P, C) is given, tokens are (B, T)
/// with T <= P. Row t of positions is added to each row (b, t) of the result. Throws for a token
/// outside [0, V). The backward may throw if V plus the number of tokens is 2^31 - 1 or more.
Tensor embedding(const Tensor& tokens, const Tensor& table, const Tensor& positions = {});

/// Packed qkv (B, T, 3C) -> (B, T, C): softmax(q k^T / sqrt(C/H), causal) v for each head. Computes
/// the scores tile by tile, with flash attention's recurrence (Dao et al., arXiv:2205.14135). On
/// CUDA, C/H is at most 256.
Tensor causal_attention(const Tensor& qkv, int64_t heads);

/// Returns y (B, C). y[b] is the sum of the rows of table (V, C) in bag b, times scale[b] if
/// `scale` is given. Bag b has the rows table[indices[i]] for i in [offsets[b], offsets[b + 1]).
/// These rows are added in f32, in order of i. The sum of an empty bag is zero.
///
/// indices are i32 (L), offsets i32 (B + 1), scale f32 (B). scale has no gradient. Indices from
/// indices[offsets[B]] on are never read, so the indices of all batches can be padded to the same
/// length L. Throws if an index that is read is outside [0, V), if an offset is outside [0, L], or
/// if offsets decrease. If the table is row-sparse (Leaf::look_up in core/autograd.h), also throws
/// if offsets[0] is not 0. The backward may throw if V + L is 2^31 - 1 or more.
Tensor embedding_bag(const Tensor& indices, const Tensor& offsets, const Tensor& table,
                     const Tensor& scale = {});

/// index_select, gather and scatter_add work along dimension `dim`; -1 is the last dimension. index
/// is i32. All three throw for a value of index outside [0, x.size(dim)). The backward of
/// index_select and gather may throw if x.size(dim) plus the size of index along `dim` is 2^31 - 1
/// or more.
/// index_select returns y with y[.., j, ..] = x[.., index[j], ..]; index is (n).
Tensor index_select(const Tensor& x, int dim, const Tensor& index);
/// Returns y with y[.., j, ..] = x[.., index[.., j, ..], ..]; index and y have the shape of x
/// except in `dim`.
Tensor gather(const Tensor& x, int dim, const Tensor& index);
/// Returns a copy of x in which source[.., j, ..] is added to x[.., index[.., j, ..], ..], in order
/// of j, in f32 and rounded once. index and source have the shape of x except in `dim`.
Tensor scatter_add(const Tensor& x, int dim, const Tensor& index, const Tensor& source);

enum class RotaryPairs {
  halves,      // elements i and i + D/2, as in GPT-NeoX and Llama
  interleaved  // elements 2i and 2i + 1, as in Su et al., arXiv:2104.09864
};
struct RotaryOptions {
  float base = 10000;
  RotaryPairs pairs = RotaryPairs::halves;
  int64_t offset = 0;  // added to positions
};
/// x (B, T, H, D), D even: pair i of a head at position p is rotated by the angle p base^(-2i/D),
/// computed in f64 (Su et al., arXiv:2104.09864). positions are i32 (T) or (B, T); undefined means
/// 0, 1, ...
Tensor rotary(const Tensor& x, const Tensor& positions = {}, RotaryOptions options = {});

struct AttentionOptions {
  bool causal = false;
  float scale = 0;  // factor of the scores; 0 means 1 / sqrt(D)
};
/// q (B, T, H, D), k and v (B, S, G, D) -> (B, T, H, D): softmax(scale q k^T) v for each head. H is
/// a multiple of G, and head h of q uses head h / (H / G) of k and v. If causal, query t sees keys
/// 0 to t + S - T, and S must be at least T. For backward the operation keeps the inputs, the
/// result and an f32 tensor (B, H, T), but no (T, S) scores. core/ops/attention.h says how much
/// workspace it takes.
Tensor attention(const Tensor& q, const Tensor& k, const Tensor& v, AttentionOptions options = {});

/// Zeroes each element with a probability of `probability`, which is in [0, 1), and scales all
/// other elements by 1 / (1 - probability). The mask is a function of (seed, step, sample, layer,
/// element). `dropout_state()` gives the seed, the training step and the sample of row 0 of x; each
/// row is one sample. If `probability` is 0, returns x itself. Otherwise throws if
/// `dropout_state()` is ambiguous (core/random.h) or has not been set.
Tensor dropout(const Tensor& x, float probability, uint64_t layer);

/// mse_loss, bce_with_logits and hinge_loss return f32 scalars []: the means of the losses below
/// over all elements of the broadcast inputs. Each element's loss is first rounded to the inputs'
/// dtype: in f16, a squared difference above 65504 is infinite.
Tensor mse_loss(const Tensor& a, const Tensor& b);  // (a - b)^2
/// -(t log(sigmoid(x)) + (1 - t) log(1 - sigmoid(x))) of logits x and targets t in [0, 1].
Tensor bce_with_logits(const Tensor& logits, const Tensor& targets);
/// max(0, 1 - t x) of scores x and targets t, which are -1 or 1.
Tensor hinge_loss(const Tensor& scores, const Tensor& targets);

/// a . b / (max(|a|, epsilon) max(|b|, epsilon)) over dimension `dim`, which is removed. a and b
/// have equally many elements in `dim`, and are broadcast in the other dimensions. The result has
/// a's dtype and is computed in f32. If |a|^2 or |b|^2 overflows f32, the result is 0. epsilon is
/// from 1e-15 to 1e19; others throw, because gradients could overflow.
Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim = -1, float epsilon = 1e-8f);
/// The mean of the rows' losses for a and b (..., C) and targets (...), all of one dtype. The
/// cosine is over the last dimension; 1e-12 is added to |a|^2 and |b|^2. targets get no gradient.
/// The loss of a row is
///   1 - cos(a, b)               if its target is 1,
///   max(0, cos(a, b) - margin)  if its target is -1.
Tensor cosine_loss(const Tensor& a, const Tensor& b, const Tensor& targets, float margin = 0);

/// Mean over rows of -log softmax(logits)[target]: logits (..., V), targets i32 (...) -> scalar [].
Tensor cross_entropy(const Tensor& logits, const Tensor& targets);

struct CrossEntropyOptions {
  Tensor class_weights = {};  // f32 (V), without a gradient; if undefined, all weights are 1
  /// Rows with this target are left out. The target may be outside [0, V).
  std::optional<int32_t> ignored = {};
};
/// The weighted mean of the rows' losses. A row's weight is the class weight of its target, and the
/// weighted sum is divided by the sum of the weights. Throws if the weights add up to zero, for
/// example if every row is ignored. The mean covers the rows of one call: if micro-batches have
/// unequal weights, the mean of their losses differs from the loss of the whole batch.
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options);

/// cross_entropy(linear(x, weight [V, C]), targets), computed in chunks of `chunk_rows` rows. If
/// chunk_rows is 0, the operation chooses a number (core/ops/linear_cross_entropy.h). The bits of
/// the result depend on the number of rows per chunk.
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
/// Multiplies x by the rounded reciprocal of the divisor. The last bits of the result can differ
/// from those of a division. If |divisor| is below 2.9e-39, the reciprocal is infinite, and the
/// result is infinite or NaN.
inline Tensor operator/(const Tensor& x, float divisor) { return ops::scale(x, 1 / divisor); }
/// Multiplies the reciprocal of x by the number. The reciprocal is first rounded to the dtype of x.
/// In f16 it is infinite for |x| below 1.5e-5 and has fewer bits for |x| above 16,384.
inline Tensor operator/(float number, const Tensor& x) {
  return ops::scale(ops::reciprocal(x), number);
}

}  // namespace tessera
