// The state that all transfers of an MpiTransport share.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

/// `stop` and `timeout_ns` are atomic: other threads write them during transfers.
struct Channel {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
  std::vector<int> job_ranks;     // for each rank of the channel, its number in the job
  std::string group;              // named in errors; empty if the channel connects the whole job
  std::atomic<bool> stop{false};  // once true, transfers in flight throw soon
  /// A transfer throws if this rank has sent and received nothing for this time.
  std::atomic<int64_t> timeout_ns{0};

  /// Returns the i-th peer to send to, 1 <= i < size. Each rank starts with a different peer, so
  /// that the ranks do not all send to one rank at the same time.
  int next_peer(int i) const { return (rank + i) % size; }
  /// Returns a rank's number in the job. Errors use this number, because launchers and users know
  /// it.
  int job_rank(int rank_here) const { return job_ranks[static_cast<size_t>(rank_here)]; }
};

}  // namespace tessera::dist
