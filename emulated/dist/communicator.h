// An emulated NCCL communicator: checks that the calls of all ranks match, then runs them.
#pragma once

#include <atomic>
#include <memory>
#include <span>

#include "emulated/capture.h"
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

  /// Returns a communicator of the ranks that give the same color; nullptr for NCCL_SPLIT_NOCOLOR.
  /// Throws if a call is in flight or an earlier call has failed.
  std::shared_ptr<Communicator> split(int color, int key);

  int rank() const { return peers_.rank(); }
  int size() const { return peers_.size(); }
  ncclResult_t failure() const { return failure_; }

  /// Makes the communicator unusable after a failed call. Tells the other ranks that this rank will
  /// make no more calls. Without this message, calls of the other ranks would fail only at the time
  /// limit. If a call is in flight, the message is sent when that call ends. Only the first failure
  /// counts. May be called from any thread.
  void fail(ncclResult_t failure);
  /// Throws if an earlier call has failed.
  void check_usable() const;

  /// Throws if an earlier call has failed or the arguments are wrong. Does not communicate.
  void check(const Call& call) const;
  /// Runs this communicator's calls of one NCCL group (ncclGroupStart to ncclGroupEnd), or a single
  /// call. Throws if a call is in flight on another thread, if an earlier call has failed, or if
  /// the calls of other ranks do not match or are not made in time.
  void run(std::span<const Call> calls);
  /// Makes a call in flight fail if it still waits for other ranks, and tells the other ranks that
  /// this rank will make no more calls. Then waits, like NCCL, until all graphs with captured calls
  /// are destroyed. This wait has no time limit. May be called from any thread.
  void leave();
  /// A token that graphs with captured calls hold. leave() waits until all graphs have released the
  /// token.
  std::shared_ptr<void> captured() const { return captured_; }
  /// The sequence of all calls on streams, so that these calls run one after the other.
  const std::shared_ptr<Sequence>& sequence() const { return sequence_; }

 private:
  /// Runs `body`, the whole of a call. If another call is in flight, throws with the text
  /// `if_in_use`.
  template <class Body>
  void make_call(const char* if_in_use, const Body& body);
  void end_call(ncclResult_t result);
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
  bool said_goodbye_ = false;  // only read and written by the thread that has set in_use_
  std::shared_ptr<void> captured_ = std::make_shared<char>();
  const std::shared_ptr<Sequence> sequence_ = std::make_shared<Sequence>();
};

}  // namespace emulated::nccl
