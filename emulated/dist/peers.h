// Messages between the ranks of an emulated NCCL communicator: what each is about to do, and data.
// All waiting is polling, so that a rank that never comes, or an abort, ends it.
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

/// What a part of the ranks has in common; no MPI communicator where it is one rank without MPI.
struct PeersOfGroup {
  MPI_Comm comm = MPI_COMM_NULL;
  int rank = 0;
  int size = 1;
};

class Peers {
 public:
  /// Duplicates MPI_COMM_WORLD, which must have `size` ranks; collective. One rank needs no MPI.
  Peers(int rank, int size);
  explicit Peers(const PeersOfGroup& group);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// The ranks that give the same color, in the order of their keys. Collective.
  PeersOfGroup split(int color, int key) const;

  int rank() const { return rank_; }
  int size() const { return size_; }

  /// Makes what waits throw, and what comes. From any thread.
  void abort() { aborted_ = true; }

  /// A call begins: from here on the others have nccl_timeout_s() to come.
  void start_clock();

  void announce(int peer, std::vector<Operation> operations);
  /// What the peer announces next; throws where it has left or does not come, with `mine`.
  std::vector<Operation> await(int peer, std::span<const Operation> mine);
  /// Tells all others that this rank makes no calls any more.
  void say_goodbye();

  // Data. `finish` returns when everything that was sent and received has been.
  void send(int peer, const void* data, size_t bytes);
  void receive(int peer, void* data, size_t bytes);
  void finish();

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
