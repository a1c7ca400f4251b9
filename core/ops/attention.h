// The launchers of attention. B sequences of T queries and S keys; H heads of size D, of which
// H / G neighbours share one of the G heads of k and v.
//
// Workspace on the CPU: for each thread a tile of scores, and in the backward dk and dv (S, D) of
// one head (attention_scratch.h). Workspace on CUDA, beside that of products (core/product.h), for
// R = min(T, 256) queries of one sequence at a time:
//   forward    scores (H, R, S) in f32 and, for 16-bit types, also in that type; (H, R, D) in f32
//   backward   the scores of the forward twice; (H, R, D), (H, R) and 2 (G, S, D) in f32
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

struct AttentionInputs {
  Tensor q, k, v;  // (B, T, H, D), (B, S, G, D), (B, S, G, D)
  float scale = 0;
  bool causal = false;  // query t sees keys up to t + S - T; S is at least T
};

/// y (B, T, H, D), and logsumexp f32 (B, H, T) of the scaled scores.
TESSERA_KERNEL(grouped_attention_forward, const Tensor& y, const Tensor& logsumexp,
               const AttentionInputs& in)

struct AttentionGradients {
  Tensor dq, dk, dv;
};
struct AttentionResults {
  Tensor dy, y, logsumexp;
};
TESSERA_KERNEL(grouped_attention_backward, const AttentionGradients& gradients,
               const AttentionResults& results, const AttentionInputs& in)

}  // namespace tessera
