// What all transfers of a transport share.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

/// `stop` and `timeout_ns` are written by other threads than the one that transfers.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<int> job_ranks;     // the number in the job of each rank of the channel
  std::string group;              // the name of these ranks; empty for all ranks of the job
  std::atomic<bool> stop{false};  // a transfer throws soon after it has become true
  /// A transfer throws after waiting so long without anything sent or received.
  std::atomic<int64_t> timeout_ns{0};

  /// Each rank in another order, so that not all send to the same rank at once: 1 <= i < size.
  int next_peer(int i) const { return (rank + i) % size; }
  /// Errors name ranks by their number in the job, by which launchers and users know them.
  int job_rank(int rank_here) const { return job_ranks[static_cast<size_t>(rank_here)]; }
};

}  // namespace tessera::dist
