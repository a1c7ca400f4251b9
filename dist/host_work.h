// Work that one thread finishes and others wait for.
#pragma once

#include <condition_variable>
#include <exception>
#include <mutex>

#include "dist/communicator.h"

namespace tessera::dist {

/// "wait reduce" for an exchange, and so on.
const char* wait_name(Collective collective);

/// The calling thread waits in `body`: waited_ns() counts the time, and the trace shows it on the
/// track `waiting` as `name`.
void wait_in(const char* name, const Call& call, const std::function<void()>& body);

class HostWork : public Work::State {
 public:
  /// `wait_name` is what the trace calls a wait for it, on the track `waiting`.
  HostWork(const char* wait_name, Call call) : wait_name_(wait_name), call_(call) {}

  /// The caller's thread waits for the communication thread. waited_ns() counts the time.
  void wait() override;
  bool done() const override;

  void finish() { end(nullptr); }
  void fail(std::exception_ptr error) { end(std::move(error)); }

 private:
  void end(std::exception_ptr error);

  const char* const wait_name_;
  const Call call_;
  mutable std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  std::exception_ptr error_;
};

}  // namespace tessera::dist
