// What all transfers of a transport share.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>

namespace tessera::dist {

/// `stop` and `timeout_ns` are written by other threads than the one that transfers.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::atomic<bool> stop{false};  // a transfer throws soon after it has become true
  /// Of waiting without anything sent or received, after which a transfer throws.
  std::atomic<int64_t> timeout_ns{0};

  /// Each rank in another order, so that not all send to the same rank at once: 1 <= i < size.
  int next_peer(int i) const { return (rank + i) % size; }
};

}  // namespace tessera::dist
