// The kernel launchers of causal_attention, and the tile sizes of causal_attention and attention
// (core/ops/attention.h) on the CPU. In shapes, B is the batch, T tokens, C channels and H heads.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Computes y (B, T, C) from packed qkv (B, T, 3C), and logsumexp f32 (B, H, T) of the scaled
/// scores. No T x T matrix is stored.
TESSERA_KERNEL(attention_forward, const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
               int64_t heads)
/// Computes dqkv (B, T, 3C).
TESSERA_KERNEL(attention_backward, const Tensor& dqkv, const Tensor& dy, const Tensor& y,
               const Tensor& logsumexp, const Tensor& qkv, int64_t heads)

namespace cpu {

// With these sizes, a block of scores (query rows x keys) and its gradient stay in the L2 cache,
// and products run near the processor's peak. attention_block_keys must be a multiple of
// attention_tile_rows.
inline constexpr int64_t attention_tile_rows = 64;    // query rows at a time
inline constexpr int64_t attention_block_keys = 512;  // keys at a time

}  // namespace cpu

}  // namespace tessera
