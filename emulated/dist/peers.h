// Messages between the ranks of an emulated NCCL communicator: announcements of calls, and data.
// A rank that waits for a message polls, so that a time limit or an abort can end the wait.
#pragma once

#include <mpi.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <vector>

#include "dist/backoff.h"
#include "emulated/dist/operation.h"

namespace emulated::nccl {

/// This rank's place in a group of ranks. `comm` is MPI_COMM_NULL if the rank is alone and does
/// not use MPI, or if split() has put the rank into no group.
struct PeersOfGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
};

class Peers {
 public:
  /// Duplicates MPI_COMM_WORLD, which must have `size` ranks. This is a collective. If `size` is 1,
  /// MPI is not used.
  Peers(int rank, int size);
  explicit Peers(const PeersOfGroup& group);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Returns the group of the ranks that give the same color, in the order of their keys. This is
  /// a collective.
  PeersOfGroup split(int color, int key) const;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Makes current and later waits throw. May be called from any thread.
  void abort() { aborted_ = true; }

  /// Starts the time limit of a call. Once nccl_timeout_s() seconds have passed, waits throw.
  void start_clock();

  /// Tells the peer which operations this rank will make next with this peer. Does not wait.
  void announce(int peer, std::vector<Operation> operations);
  /// Returns the peer's next announcement. Throws if the peer has left or announces nothing in
  /// time. The error names `mine`, this rank's operations.
  std::vector<Operation> await(int peer, std::span<const Operation> mine);
  /// Tells all other ranks that this rank will make no more calls.
  void say_goodbye();

  // `send` and `receive` only start transfers of data; `finish` waits until all transfers are done.
  // If one of the three throws, `cancel` must be called before the caller's memory is freed or
  // reused, because a late message would overwrite this memory. After `cancel`, no transfers may be
  // started.
  void send(int peer, const void* data, size_t bytes);
  void receive(int peer, void* data, size_t bytes);
  void finish();
  void cancel();
  /// True from the first `send` or `receive` until `finish` returns. Stays true after `cancel`,
  /// because a message that has begun to arrive cannot be cancelled.
  bool has_transfers() const { return !transfers_.empty(); }

 private:
  struct Announcement {
    std::vector<Operation> operations;
    MPI_Request request = MPI_REQUEST_NULL;
  };

  template <class Text>
  void pause(const Text& what_it_waits_for);

  MPI_Comm comm_ = MPI_COMM_NULL;
  int rank_;
  int size_;
  std::atomic<bool> aborted_{false};
  std::chrono::steady_clock::time_point deadline_{};
  tessera::dist::Backoff backoff_;
  std::vector<bool> gone_;  // peers that said goodbye
  std::deque<std::unique_ptr<Announcement>> announced_;
  std::vector<MPI_Request> transfers_;
};

}  // namespace emulated::nccl
