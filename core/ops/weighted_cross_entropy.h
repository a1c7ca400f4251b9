// The kernel launchers that cross_entropy uses only if it has class weights or an ignored target.
// The other launchers of cross_entropy are in cross_entropy.h. There are R rows of logits; V is the
// number of classes.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dispatch.h"

namespace tessera {

/// From targets i32 (R) and class_weights f32 (V), which may be undefined, computes for each row:
///   looked_up i32 (R)   the target, or 0 if the target is `ignored`
///   weights f32 (R)     the first that applies:
///                         0 if the target is `ignored`
///                         1 if class_weights is undefined
///                         0 if the target is outside [0, V)
///                         the target's class weight
TESSERA_KERNEL(target_weights, const Tensor& weights, const Tensor& looked_up,
               const Tensor& targets, const Tensor& class_weights, std::optional<int32_t> ignored)
/// Throws if total[0], the sum of the weights of `rows` rows, is zero: the mean loss would then be
/// undefined. On CUDA the host throws at its next synchronisation with the device.
TESSERA_KERNEL(check_total_weight, const Tensor& total, int64_t rows)
/// dlogits = (softmax - onehot) * shares[row] * dloss[0]. shares f32 (R) holds each row's weight
/// divided by the sum of the weights. Rows whose share is zero get zeros, even if their logits are
/// not finite. dlogits may be the logits themselves.
TESSERA_KERNEL(weighted_cross_entropy_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& logits, const Tensor& normalizers, const Tensor& targets,
               const Tensor& shares)

}  // namespace tessera
