// The kernel launchers of the terms that label smoothing adds to cross_entropy.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// losses[r] += smoothing * mean(logits[r][target] - logits[r]); losses f32 (R), logits (R, V),
/// targets i32 (R). Differences are summed, because they stay small if all logits are large.
TESSERA_KERNEL(label_smoothing_forward, const Tensor& losses, const Tensor& logits,
               const Tensor& targets, float smoothing)
/// dlogits[r] += (onehot(target) - 1 / V) * smoothing * scale * dloss[0]; dlogits f32 (R, V).
TESSERA_KERNEL(label_smoothing_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& targets, float smoothing, float scale)

}  // namespace tessera
