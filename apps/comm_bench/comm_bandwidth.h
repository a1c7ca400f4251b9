// Computes bandwidth as nccl-tests does, so that the results of the two programs can be compared.
// For a buffer of `size` bytes on each of N ranks:
//
//   algbw = size / time               the bandwidth that the caller of the collective gets
//   busbw = algbw * factor            the bandwidth of each rank's link; comparable with the
//                                     hardware's bandwidth for any N
//
// The factor is the number of bytes that cross each rank's link in one direction, divided by size.
// The formulas assume an algorithm that sends as few bytes as possible, and that the ranks
// themselves add the data (some network switches can add it on the way):
//
//   all_reduce                                2 (N-1) / N
//   reduce_scatter, exchange, all_gather      (N-1) / N
//   exchange_v (alltoallv), all_gather_v      (N-1) / N
//   broadcast, send_receive (sendrecv)        1
//
// In exchange, each rank sends one piece of its buffer to each other rank, and adds up the pieces
// that it receives. The time includes these additions. nccl-tests has no such measurement. exchange
// sends as many bytes as reduce_scatter, so the factors are equal.
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

  /// Returns the sizes, each rounded up to a multiple of `unit` bytes, without duplicates. Rounding
  /// may raise the last size above max_bytes.
  std::vector<int64_t> in_units_of(int64_t unit) const;
};

struct Bandwidth {
  double algorithm = 0;  // algbw in GB/s (10^9 bytes per second)
  double bus = 0;        // busbw in GB/s
};

/// The factor from algbw to busbw. Throws for a barrier and a split, which move no data.
double bus_factor(dist::Collective collective, int64_t ranks);
Bandwidth bandwidth(dist::Collective collective, int64_t bytes, int64_t ranks, double seconds);

/// Returns the number that nccl-tests prints as "count", for a buffer of `elements` elements. The
/// count is `elements` for all_reduce, broadcast and send_receive. For other collectives, it is the
/// length of one rank's piece of the buffer, or the mean length if the lengths differ.
int64_t argument_elements(dist::Collective collective, int64_t elements, int64_t ranks);

/// The middle value, or the mean of the two middle values. There must be at least one value.
double median(std::vector<double> values);

}  // namespace tessera::apps
