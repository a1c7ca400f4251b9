// The launchers of cross_entropy, whose logits may have longer rows than the vocabulary.
#pragma once

#include <cstdint>
#include <string_view>

#include "core/dispatch.h"

namespace tessera {

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
