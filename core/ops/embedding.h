// The kernel launchers of embedding. A sequence has T tokens, and all sequences together have R
// tokens. C is the number of channels, V the vocabulary.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// y[r] = table[tokens[r]] + positions[r mod T], where y is (R, C) and T is `positions_per_row`.
/// positions (P, C), P >= T, may be undefined.
TESSERA_KERNEL(embedding_forward, const Tensor& y, const Tensor& tokens, const Tensor& table,
               const Tensor& positions, int64_t positions_per_row)
/// dtable[v] is the f32 sum of dy[r] over all r with tokens[r] = v, in order of r. dtable has shape
/// (V, C), and dy has shape (R, C). If `accumulate`, adds the sums to dtable. Errors name
/// `operation`, which is embedding, index_select or gather.
TESSERA_KERNEL(embedding_backward, const char* operation, const Tensor& dtable, const Tensor& dy,
               const Tensor& tokens, bool accumulate)
/// dpositions[t] is the f32 sum of dy[b, t] over the batch for t < T, and zero for T <= t < P.
/// dpositions is (P, C), and T is `tokens_per_row`.
TESSERA_KERNEL(position_backward, const Tensor& dpositions, const Tensor& dy,
               int64_t tokens_per_row)

}  // namespace tessera
