// The launchers of cross_entropy. The rows of logits may be longer than the vocabulary.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dispatch.h"

namespace tessera {

/// Throws where a target is outside [0, vocabulary), naming the operation, position and value.
TESSERA_KERNEL(check_targets, std::string_view operation, const Tensor& targets, int64_t vocabulary)
/// Computes losses f32 (R) and logsumexp f32 (R) of logits (R, S) and targets i32 (R). Only the
/// first V = `vocabulary` elements of each row of logits are read.
TESSERA_KERNEL(cross_entropy_forward, const Tensor& losses, const Tensor& logsumexp,
               const Tensor& logits, const Tensor& targets, int64_t vocabulary)
/// dlogits = (softmax - onehot) * scale * dloss[0], rounded to the dtype of dlogits. With the dtype
/// of the logits, dlogits may be the logits themselves. dloss is f32. dlogits has the logits'
/// shape, and the elements of its rows past the first V are not written.
TESSERA_KERNEL(cross_entropy_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& logits, const Tensor& logsumexp, const Tensor& targets,
               int64_t vocabulary, float scale)

}  // namespace tessera
