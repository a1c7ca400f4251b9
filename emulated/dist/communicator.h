// An emulated NCCL communicator: compares what ranks are about to do, and then does it.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "emulated/dist/peers.h"

namespace emulated::nccl {

struct Call {
  Operation operation;
  const void* send = nullptr;
  void* receive = nullptr;
};

class Communicator {
 public:
  Communicator(int rank, int size, int device) : peers_(rank, size), device_(device) {}
  Communicator(const PeersOfGroup& group, int device) : peers_(group), device_(device) {}

  /// One of the ranks that give the same color; nullptr for NCCL_SPLIT_NOCOLOR. Throws where a call
  /// is under way or one has failed.
  std::shared_ptr<Communicator> split(int color, int key);

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  ncclResult_t failure() const { return failure_; }

  /// Throws where the arguments alone are wrong.
  void check(const Call& call) const;
  /// The calls of one group. Throws where ranks disagree or one does not come; not usable then.
  void run(std::span<const Call> calls);
  /// From any thread: ends what is under way, and tells the others. Then waits, for ever if need
  /// be, for the last graph that has captured calls to go, as NCCL does.
  void leave();
  /// Lives as long as a graph that has captured a call.
  std::shared_ptr<void> captured() const { return captured_; }

 private:
  void run_collective(const Call& call);
  void run_transfers(std::span<const Call> transfers);
  void compare(const Operation& mine);
  void compare_transfers(int peer, std::span<const Operation> mine);

  void gather(const Call& call);
  void broadcast(const Call& call);
  void reduce(const Call& call);
  void reduce_scatter(const Call& call);

  void check_buffer(const Operation& operation, const char* name, const void* buffer,
                    size_t bytes) const;

  Peers peers_;
  const int device_;
  std::atomic<ncclResult_t> failure_{ncclSuccess};
  std::atomic_flag in_use_;
  std::shared_ptr<void> captured_ = std::make_shared<char>();
};

}  // namespace emulated::nccl
