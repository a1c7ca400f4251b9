// The kernel launchers of attention. There are B sequences of T queries and S keys. q has H heads
// of size D; k and v have G heads, each shared by H / G neighbouring heads of q.
//
// Workspace on the CPU: a Scratch for each thread (attention_scratch.h). The CUDA launchers process
// at most R = min(T, 256) queries of one sequence at a time. They need the workspace of products
// (core/product.h), and these tensors in f32:
//   forward    scores (H, R, S), rows of y (H, R, D)
//   backward   scores (H, R, S), their gradient (H, R, S), rows of dq (H, R, D),
//              sums of dy * y (H, R), dk and dv (G, S, D)
// If q has a 16-bit dtype, each (H, R, S) tensor is needed a second time, in q's dtype.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

struct AttentionInputs {
  Tensor q, k, v;  // (B, T, H, D), (B, S, G, D), (B, S, G, D)
  float scale = 0;
  bool causal = false;  // if true, query t sees keys 0 to t + S - T, and S is at least T
};

/// Computes y (B, T, H, D), and logsumexp f32 (B, H, T) of the scaled scores.
TESSERA_KERNEL(grouped_attention_forward, const Tensor& y, const Tensor& logsumexp,
               const AttentionInputs& in)

struct AttentionGradients {
  Tensor dq, dk, dv;
};
struct AttentionResults {
  Tensor dy, y, logsumexp;
};
/// Computes dq, dk and dv.
TESSERA_KERNEL(grouped_attention_backward, const AttentionGradients& gradients,
               const AttentionResults& results, const AttentionInputs& in)

}  // namespace tessera
