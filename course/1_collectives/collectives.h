// Lesson 1: collectives from sends and receives. Buffers are f32. A buffer of E elements has N
// pieces, one for each rank; piece r is [r E / N, (r + 1) E / N), so E need not be a multiple of N.
#pragma once

#include <cstdint>

#include "dist/communicator.h"
#include "dist/shard_layout.h"

namespace course {

using namespace tessera;

/// The purpose of all transfers of this lesson. Pass it to each call, because the check counts
/// bytes by purpose.
inline const dist::Call transfer{dist::Traffic::gradients};

/// Returns a view of piece r of a buffer.
inline Tensor piece(const Tensor& buffer, int64_t r, int64_t ranks) {
  return buffer.flat(r * buffer.elements() / ranks, (r + 1) * buffer.elements() / ranks);
}

/// to += from, element by element.
inline void add(const Tensor& to, const Tensor& from) {
  float* const sum = to.data<float>();
  const float* const more = from.data<float>();
  for (int64_t i = 0; i < to.elements(); ++i) sum[i] += more[i];
}

// The ring: rank r sends to rank r + 1 and receives from rank r - 1 (modulo N). A reduce-scatter
// and an all-gather take N - 1 rounds each.
/// Afterwards piece rank() of the buffer has the sum over all ranks. The other pieces may have any
/// values.
void ring_reduce_scatter(dist::Communicator& communicator, const Tensor& buffer);
/// Piece rank() of the buffer is the input. Afterwards every rank has all pieces.
void ring_all_gather(dist::Communicator& communicator, const Tensor& buffer);
/// Replaces the buffer of every rank with the sum of the buffers of all ranks.
void ring_all_reduce(dist::Communicator& communicator, const Tensor& buffer);

// The binomial tree: ranks send whole buffers. A reduce and a broadcast take ceil(log2 N) rounds
// each.
/// Afterwards rank 0 has the sum over all ranks. On other ranks the buffer may have any values.
void tree_reduce(dist::Communicator& communicator, const Tensor& buffer);
/// Copies rank 0's buffer to all ranks.
void tree_broadcast(dist::Communicator& communicator, const Tensor& buffer);
void tree_all_reduce(dist::Communicator& communicator, const Tensor& buffer);

/// A transfer of n bytes takes latency_s + n / bytes_per_s seconds. A rank can send and receive at
/// the same time.
struct Link {
  double latency_s = 0;
  double bytes_per_s = 0;
};
/// Returns the time in seconds that an all-reduce of `bytes` bytes takes. `bytes` is a multiple of
/// `ranks`. Additions take no time.
double ring_all_reduce_s(double bytes, int64_t ranks, const Link& link);
double tree_all_reduce_s(double bytes, int64_t ranks, const Link& link);

}  // namespace course
