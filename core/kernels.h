// The launchers: each declared once for both devices, and dispatched once, by the context's device.
// `cpu::name` stands in core/ops/<operation>.cpp, `cuda::name` in core/ops/<operation>.cu.
//
// A launcher overwrites its destinations (first arguments) unless it says otherwise; shapes were
// checked by the operation. B batch, T tokens, C channels, V vocabulary, H heads, D = C / H.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "core/context.h"
#include "core/random.h"

namespace tessera {

#ifdef TESSERA_WITH_CUDA
#define TESSERA_DISPATCH(name, context, ...) \
  (context).device.is_cpu() ? cpu::name(context, __VA_ARGS__) : cuda::name(context, __VA_ARGS__)
#else
#define TESSERA_DISPATCH(name, context, ...) cpu::name(context, __VA_ARGS__)
#endif

// Declares cpu::name and cuda::name with the given parameters, and kernels::name, which dispatches.
#define TESSERA_KERNEL(name, ...)                                        \
  namespace cpu {                                                        \
  void name(const Context& context, __VA_ARGS__);                        \
  }                                                                      \
  namespace cuda {                                                       \
  void name(const Context& context, __VA_ARGS__);                        \
  }                                                                      \
  namespace kernels {                                                    \
  template <class... Args>                                               \
  void name(const Context& context, Args&&... args) {                    \
    TESSERA_DISPATCH(name, context, std::forward<Args>(args)...);        \
  }                                                                      \
  }

/// What an operation applies to its result.
enum class Activation : uint8_t { none, gelu };
/// How a Linear stores its weight: [in, out] as GPT-2 does, or [out, in] as torch.nn.Linear does.
enum class WeightLayout : uint8_t { in_out, out_in };

struct MatmulArgs {
  bool transpose_a = false;
  bool transpose_b = false;
  bool accumulate = false;  // add to the destination
};

/// Where the weights of a range of a flat buffer take their hyper-parameters from: elements
/// [begin, end) belong to parameter group `group`. Both ends lie on blocks of 256 elements.
struct UpdateSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;
};

/// Hyper-parameters of one group for one step, plain data so that it can live on the device.
struct UpdateHyper {
  float learning_rate = 0;
  float beta1 = 0;              // Adam; for SGD the momentum
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;
  float bias_correction1 = 1;   // 1 - beta1^t
  float bias_correction2 = 1;   // 1 - beta2^t
  float gradient_scale = 1;     // the clip factor, and what else gradients are multiplied by
  bool decoupled_decay = true;  // AdamW; false: Adam with L2
  bool nesterov = false;
  bool first_step = false;      // SGD: the momentum buffer starts as the gradient
};

/// What the end of a step computes and its update reads, plain data that lives where both run: the
/// host knows it later, or never.
struct StepScalars {
  double square_sum = 0;     // of the sums of the gradients, before they are scaled
  float loss = 0;            // of the global batch
  float norm = 0;            // of the gradient, before clipping
  float gradient_scale = 1;  // what a sum of gradients is multiplied by in the update
  int32_t non_finite = -1;   // the first micro-batch whose loss is not finite
  int32_t skip = 0;          // 1: nothing is updated
};

/// The block sums of squares of all ranks, and where those of each parameter are. In parameter
/// order the blocks of all parameters are numbered from 0.
struct BlockSums {
  struct Segment {              // a parameter, in a bucket of which each rank has as many blocks
    int64_t begin = 0;          // its first block's number
    int64_t first = 0;          // its first block's place in the bucket
    int64_t shard_blocks = 0;   // of the bucket in a rank's sums,
    int64_t shard_first = 0;    // which begin there

    /// Where the sum of block `number` is, a block of this segment.
    constexpr int64_t place(int64_t number, int64_t per_rank) const {
      const int64_t block = first + number - begin;
      return block / shard_blocks * per_rank + shard_first + block % shard_blocks;
    }
  };
  const double* values = nullptr;     // [ranks * per_rank]
  int64_t per_rank = 0;
  const Segment* segments = nullptr;  // ascending, the first from 0 on, without gaps
  int64_t segment_count = 0;
  int64_t blocks = 0;                 // of all segments
  double* partial_sums = nullptr;     // scratch that CUDA wants: one for each of so many blocks
  static constexpr int64_t blocks_per_partial_sum = 1024;
};

/// How the end of a step makes its scalars.
struct StepEnd {
  int64_t ranks = 1;
  int64_t micro_steps = 1;
  int64_t micro_batches = 1;
  float share = 1;            // of a micro-batch in the loss
  float correction = 1;       // of the loss, for micro-batches without data
  float gradient_factor = 1;  // of a gradient in its sum
  float clip = 0;             // maximum of the norm; 0: no clipping
  bool keep_skipping = true;  // once something was not finite, until `skip` is set to 0
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

// Flat kernels: on whole blocks of 256 elements, threads split at blocks.

/// accumulator = (first ? +0.0 : accumulator) + contribution, in f32, rounded to the accumulator's
/// dtype, which is f32 or bf16.
TESSERA_KERNEL(fold, const Tensor& accumulator, const Tensor& contribution, bool first)
/// sums[i] = the fp64 sum of squares of block i of x (blocks of 256 elements); in memory of the
/// context's device, as are all pointers below.
TESSERA_KERNEL(block_square_sums, std::span<double> sums, const Tensor& x)
/// scalars->square_sum = the sum of all block sums, in an order that depends on their number alone:
/// on the CPU one after the other, on CUDA a tree.
TESSERA_KERNEL(add_block_sums, StepScalars* scalars, const BlockSums& sums)
/// The rest of the scalars, from square_sum and losses, f32 [ranks * micro_steps], of which
/// micro-batch m = micro-step * ranks + rank has losses[rank * micro_steps + micro-step]; those
/// without data are zeros. loss is the left fold in order of m. skip = 1 where loss or norm is not
/// finite, or where it was 1 before and keep_skipping says so.
TESSERA_KERNEL(end_step, StepScalars* scalars, const Tensor& losses, const StepEnd& end)

// An update with `scalars` multiplies its groups' gradient_scale by theirs, and changes nothing
// where they say skip.

/// Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101).
/// Parameters and moments are f32; gradients of any dtype.
TESSERA_KERNEL(adam_update, const Tensor& parameters, const Tensor& first_moment,
               const Tensor& second_moment, const Tensor& gradients,
               std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
               const StepScalars* scalars = nullptr)
/// SGD with momentum as PyTorch defines it; momentum may be undefined when no group has any.
/// Parameters and momentum are f32; gradients of any dtype.
TESSERA_KERNEL(sgd_update, const Tensor& parameters, const Tensor& momentum,
               const Tensor& gradients, std::span<const UpdateSegment> segments,
               std::span<const UpdateHyper> groups, const StepScalars* scalars = nullptr)

}  // namespace tessera
