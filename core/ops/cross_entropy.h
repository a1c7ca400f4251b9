// The kernel launchers of cross_entropy. There are R rows of logits, of S elements each; S may be
// larger than the vocabulary V.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dispatch.h"

namespace tessera {

/// What the probabilities of a row of logits are computed from: exp((logit - maximum) - log_sum).
/// The sum of the two numbers, logsumexp, would not do: if the logits are large, rounding it to f32
/// loses the digits of log_sum. The difference of a logit and the maximum is exact if they are
/// close to each other.
struct Normalizer {
  float maximum;  // the largest logit
  float log_sum;  // log(sum(exp(logits - maximum)))
};

/// Throws if a target is outside [0, vocabulary). The message names the operation, position and
/// value. On CUDA the host throws at its next synchronisation with the device.
TESSERA_KERNEL(check_targets, std::string_view operation, const Tensor& targets, int64_t vocabulary)
/// Computes losses f32 (R) and normalizers f32 (R, 2) of logits (R, S) and targets i32 (R). A row
/// of normalizers has the numbers of a Normalizer. Only the first V = `vocabulary` elements of each
/// row of logits are read.
TESSERA_KERNEL(cross_entropy_forward, const Tensor& losses, const Tensor& normalizers,
               const Tensor& logits, const Tensor& targets, int64_t vocabulary)
/// dlogits = (softmax - onehot) * scale * dloss[0], rounded to the dtype of dlogits. dloss is f32.
/// dlogits has the shape of the logits, and only the first V elements of its rows are written. If
/// dlogits and logits have the same dtype, they may be one tensor.
TESSERA_KERNEL(cross_entropy_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& logits, const Tensor& normalizers, const Tensor& targets,
               int64_t vocabulary, float scale)
/// Computes losses f32 (R), and overwrites the logits (R, S) with their gradient
/// (softmax - onehot) * scale, rounded to their dtype. Only the first V elements of each row are
/// read and written. The losses have the same bits as those of cross_entropy_forward.
TESSERA_KERNEL(cross_entropy_in_place, const Tensor& losses, const Tensor& logits,
               const Tensor& targets, int64_t vocabulary, float scale)

}  // namespace tessera
