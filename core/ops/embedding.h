// The launchers of embedding. T tokens in a sequence, R tokens in all, C channels, V vocabulary.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// y (R, C) = table[tokens (R)] + positions[r mod T]; positions (>= T, C) may be undefined.
TESSERA_KERNEL(embedding_forward, const Tensor& y, const Tensor& tokens, const Tensor& table,
               const Tensor& positions, int64_t positions_per_row)
/// dtable (V, C) = for each token the fp32 sum of its rows of dy, in order of position; added to
/// dtable if `accumulate`.
TESSERA_KERNEL(embedding_backward, const Tensor& dtable, const Tensor& dy, const Tensor& tokens,
               bool accumulate)
/// dpositions (P, C): a row t < T is the fp32 sum of dy over the batch; the other rows are zero.
TESSERA_KERNEL(position_backward, const Tensor& dpositions, const Tensor& dy,
               int64_t tokens_per_row)

}  // namespace tessera
