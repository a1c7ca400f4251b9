// How nccl-tests counts bandwidth, so that figures can be laid beside its own. For a buffer of
// `size` bytes on each of N ranks:
//
//   algbw = size / time               what the program gets
//   busbw = algbw * factor            what each rank's link carries, to compare with the hardware's
//                                     whatever N: the fewest bytes that the collective can move
//
//   all_reduce                                2 (N-1) / N
//   reduce_scatter, exchange, all_gather      (N-1) / N
//   exchange_v (alltoallv), all_gather_v      (N-1) / N
//   broadcast, send_receive (sendrecv)        1
//
// nccl-tests has no exchange: it moves as many bytes as a reduce-scatter, and counts like one.
#pragma once

#include <cstdint>
#include <vector>

#include "dist/traffic.h"

namespace tessera::apps {

/// The sizes of buffers to measure: min, min * factor, ... up to max.
struct CommSizes {
  int64_t min_bytes = 0;
  int64_t max_bytes = 0;
  int64_t factor = 2;

  /// Each rounded up to a multiple of `unit` bytes, and there once; the last may so exceed the
  /// maximum.
  std::vector<int64_t> in_units_of(int64_t unit) const;
};

struct Bandwidth {
  double algorithm = 0;  // GB/s, of 10^9 bytes
  double bus = 0;
};

/// Throws for a barrier and a split, which move nothing.
double bus_factor(dist::Collective collective, int64_t ranks);
Bandwidth bandwidth(dist::Collective collective, int64_t bytes, int64_t ranks, double seconds);

/// What nccl-tests prints as count: of one piece where each rank has its own, else of the buffer.
int64_t argument_elements(dist::Collective collective, int64_t elements, int64_t ranks);

/// The middle value, or the mean of the two; of at least one.
double median(std::vector<double> values);

}  // namespace tessera::apps
