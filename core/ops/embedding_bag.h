// The launchers of embedding_bag. L indices, B bags, C channels, V vocabulary.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// Bag b has positions [offsets[b], offsets[b + 1]) of indices, and factor scale[b].
struct Bags {
  Tensor indices;  // i32 (L); only positions [first offset, last offset) are read
  Tensor offsets;  // i32 (B + 1)
  Tensor scale;    // f32 (B); if undefined, all factors are 1
};

/// y (B, C): y[b] = scale[b] times the fp32 sum of bag b's rows of table (V, C), in order.
TESSERA_KERNEL(embedding_bag_forward, const Tensor& y, const Bags& bags, const Tensor& table)
/// dtable[v] (V, C) = the fp32 sum of scale[b] dy[b] over all positions of token v, in order, where
/// b is the position's bag. If `accumulate`, the sums are added to dtable.
/// Workspace: 4 bytes * (V + 1 + L).
TESSERA_KERNEL(embedding_bag_backward, const Tensor& dtable, const Tensor& dy, const Bags& bags,
               bool accumulate)

}  // namespace tessera
