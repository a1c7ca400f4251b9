// The launchers of the operations (core/dispatch.h). Shapes were checked by the operation.
// B batch, T tokens, C channels, V vocabulary, H heads, D = C / H.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dispatch.h"
#include "core/random.h"

namespace tessera {

/// What an operation applies to its result.
enum class Activation : uint8_t { none, gelu };
/// How a Linear stores its weight: [in, out] as GPT-2 does, or [out, in] as torch.nn.Linear does.
enum class WeightLayout : uint8_t { in_out, out_in };

struct MatmulArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // add to the destination
};

TESSERA_KERNEL(fill, const Tensor& y, float value)
TESSERA_KERNEL(copy, const Tensor& y, const Tensor& x)
/// y = x, each element rounded to y's dtype.
TESSERA_KERNEL(convert, const Tensor& y, const Tensor& x)
TESSERA_KERNEL(add, const Tensor& y, const Tensor& a, const Tensor& b)
TESSERA_KERNEL(mul, const Tensor& y, const Tensor& a, const Tensor& b)
TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)
/// y[0], f32, = factor * sum of x, in fixed blocks, so that the order does not depend on threads.
TESSERA_KERNEL(sum, const Tensor& y, const Tensor& x, float factor)
/// Every element of dx becomes factor * dy[0]; dy is f32.
TESSERA_KERNEL(sum_backward, const Tensor& dx, const Tensor& dy, float factor)
/// y (..., n, m) = x (..., m, n)
TESSERA_KERNEL(transpose, const Tensor& y, const Tensor& x)

/// y (..., m, n) = op(a) op(b), batched over equal leading dimensions; a or b may be 2-D for all of
/// them. y is f32 or of the operands' dtype. m is y's and n and k are b's: the rows of y and a may
/// be longer, and what they have behind is neither read nor written.
TESSERA_KERNEL(matmul, const Tensor& y, const Tensor& a, const Tensor& b, MatmulArgs args)

/// y (R, out) = x (R, in) weight + bias. bias may be undefined. With an activation,
/// y = activation(pre) and pre (R, out) keeps the value before it, unless it is undefined.
TESSERA_KERNEL(linear_forward, const Tensor& y, const Tensor& pre, const Tensor& x,
               const Tensor& weight, const Tensor& bias, WeightLayout layout, Activation activation)
/// Any of dx, dweight, dbias may be undefined; x may where dweight is, and the weight is not read
/// where dx is. With an activation `dy` belongs to its output.
TESSERA_KERNEL(linear_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& pre, const Tensor& x, const Tensor& weight,
               WeightLayout layout, Activation activation)

/// GELU in its tanh form (Hendrycks and Gimpel, arXiv:1606.08415).
TESSERA_KERNEL(gelu_forward, const Tensor& y, const Tensor& x)
TESSERA_KERNEL(gelu_backward, const Tensor& dx, const Tensor& dy, const Tensor& x)

/// Rows of C: y = (x - mean) * rstd * weight + bias; mean and rstd are f32 (R).
TESSERA_KERNEL(layer_norm_forward, const Tensor& y, const Tensor& mean, const Tensor& rstd,
               const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon)
/// sum = x + residual, y = layer_norm(sum).
TESSERA_KERNEL(residual_layer_norm_forward, const Tensor& y, const Tensor& sum, const Tensor& mean,
               const Tensor& rstd, const Tensor& x, const Tensor& residual, const Tensor& weight,
               const Tensor& bias, float epsilon)
/// dx = the gradient through the norm, plus dsum where that is defined. Any destination may be
/// undefined.
TESSERA_KERNEL(layer_norm_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& dsum, const Tensor& x, const Tensor& mean,
               const Tensor& rstd, const Tensor& weight)

/// y (R, C) = table[tokens (R)] + positions[r mod T]; positions (>= T, C) may be undefined.
TESSERA_KERNEL(embedding_forward, const Tensor& y, const Tensor& tokens, const Tensor& table,
               const Tensor& positions, int64_t positions_per_row)
/// dtable (V, C) = per token the fp32 sum of its rows in order; added to dtable if accumulate.
TESSERA_KERNEL(embedding_backward, const Tensor& dtable, const Tensor& dy, const Tensor& tokens,
               bool accumulate)
/// dpositions (P, C): rows t < T the fp32 sum over the batch, the rest zero.
TESSERA_KERNEL(position_backward, const Tensor& dpositions, const Tensor& dy,
               int64_t tokens_per_row)

/// y (B, T, C) from packed qkv (B, T, 3C); logsumexp f32 (B, H, T). No T x T matrix is held.
TESSERA_KERNEL(attention_forward, const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
               int64_t heads)
TESSERA_KERNEL(attention_backward, const Tensor& dqkv, const Tensor& dy, const Tensor& y,
               const Tensor& logsumexp, const Tensor& qkv, int64_t heads)

/// Which elements dropout keeps: those whose 32-bit draw is at least `threshold`.
struct DropoutArgs {
  DropoutState state;
  uint64_t layer = 0;
  uint32_t threshold = 0;      // probability times 2^32
  float keep_scale = 1;        // 1 / (1 - probability)
  int64_t elements_per_sample = 1;
};
/// y = x * keep_scale where kept, 0 elsewhere. Its own backward, with dy for x.
TESSERA_KERNEL(dropout, const Tensor& y, const Tensor& x, DropoutArgs args)

/// Throws where a target is outside [0, vocabulary), naming the operation, position and value.
TESSERA_KERNEL(check_targets, std::string_view operation, const Tensor& targets, int64_t vocabulary)
/// logits (R, S), of which a row's first V = `vocabulary` elements are looked at, targets i32 (R):
/// losses f32 (R) and logsumexp f32 (R).
TESSERA_KERNEL(cross_entropy_forward, const Tensor& losses, const Tensor& logsumexp,
               const Tensor& logits, const Tensor& targets, int64_t vocabulary)
/// dlogits = (softmax - onehot) * scale * dloss[0], rounded to the dtype of dlogits; where that is
/// the logits' own, dlogits may be the logits themselves. dloss is f32. dlogits has the logits'
/// shape, and what its rows have behind V is not written.
TESSERA_KERNEL(cross_entropy_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& logits, const Tensor& logsumexp, const Tensor& targets,
               int64_t vocabulary, float scale)

}  // namespace tessera
