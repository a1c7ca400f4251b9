// The launchers of what class weights and an ignored target add to cross_entropy.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dispatch.h"

namespace tessera {

/// targets i32 (R), class_weights f32 (V) or undefined -> weights f32 (R): that of the target, or
/// 1; 0 for an ignored row, and for a target outside [0, V). looked_up i32 (R): the target, or 0
/// for an ignored row.
TESSERA_KERNEL(target_weights, const Tensor& weights, const Tensor& looked_up,
               const Tensor& targets, const Tensor& class_weights, std::optional<int32_t> ignored)
/// Throws where total[0], the sum of the weights of R rows, is zero: a mean over them is undefined.
TESSERA_KERNEL(check_total_weight, const Tensor& total, int64_t rows)
/// dlogits = (softmax - onehot) * shares[row] * dloss[0], zero in rows whose share is zero,
/// whatever their logits; else as cross_entropy_backward. shares is f32 (R).
TESSERA_KERNEL(weighted_cross_entropy_backward, const Tensor& dlogits, const Tensor& dloss,
               const Tensor& logits, const Tensor& logsumexp, const Tensor& targets,
               const Tensor& shares)

}  // namespace tessera
