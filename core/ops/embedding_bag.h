// The kernel launchers of embedding_bag. There are L indices, B bags and C channels. V is the
// vocabulary.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// Bag b has positions [offsets[b], offsets[b + 1]) of indices, and factor scale[b].
struct Bags {
  Tensor indices;  // i32 (L); only positions [first offset, last offset) are read
  Tensor offsets;  // i32 (B + 1)
  Tensor scale;    // f32 (B); if undefined, all factors are 1
};

/// y[b] (B, C) is scale[b] times the f32 sum of bag b's rows of table (V, C), added in the order of
/// the bag's indices.
TESSERA_KERNEL(embedding_bag_forward, const Tensor& y, const Bags& bags, const Tensor& table)
/// dtable[v] (V, C) is the f32 sum of scale[b] dy[b] over all positions of token v, in ascending
/// order of position, where b is the bag of the position. If `accumulate`, adds the sums to dtable.
/// Workspace: 4 bytes * (V + 1 + L).
TESSERA_KERNEL(embedding_bag_backward, const Tensor& dtable, const Tensor& dy, const Bags& bags,
               bool accumulate)

}  // namespace tessera
