// Work that one thread finishes while other threads wait for it.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>

#include "dist/communicator.h"

namespace tessera::dist {

/// Returns the name under which the trace shows a wait for this collective, such as "wait gather".
/// Both exchange and reduce_scatter have "wait reduce", because gradients are reduced with either:
/// exchange brings them to their owner, which adds them in order of rank (Reduction::ordered).
const char* wait_name(Collective collective);

/// Runs `body`, which blocks, and adds its duration to waited_ns() of the calling thread. The trace
/// shows the wait on the track `waiting` under `name`, with the bucket and purpose of `call`.
void wait_in(const char* name, const Call& call, const std::function<void()>& body);

/// Throws if the calling thread is `server`, the thread that finishes the work: this thread would
/// wait for itself. `what` names the wait in the error.
void check_may_wait(std::thread::id server, const std::string& what);

class HostWork : public Work::State {
 public:
  /// `wait_name` names the wait in the trace, on the track `waiting`; `server` is the thread that
  /// will finish the work.
  HostWork(const char* wait_name, Call call, std::thread::id server)
      : wait_name_(wait_name), call_(call), server_(server) {}

  /// Blocks until `server` has finished the work; waited_ns() counts the time. Rethrows the work's
  /// failure. Throws if `server` itself waits for work that is not done: it would wait for ever.
  void wait() override;
  bool done() const override;

  void finish() { end(nullptr); }
  void fail(std::exception_ptr error) { end(std::move(error)); }

 private:
  void end(std::exception_ptr error);

  const char* const wait_name_;
  const Call call_;
  const std::thread::id server_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace tessera::dist
