// Ends a process that waits in vain for the other ranks to start: MPI_Init and the first calls
// after it have no time limit of their own, so a rank that is stopped before them, or a launcher
// that is killed, would hold the others for ever.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera::dist {

/// If a guard lives longer than --comm-timeout of the command line (at least 10 s, by default
/// default_comm_timeout_s), it prints an error and ends the process with exit code 1, so that the
/// launcher ends the other ranks. It also ends the process if the parent process dies meanwhile.
class StartGuard {
 public:
  StartGuard(int argc, const char* const* argv);
  ~StartGuard();
  StartGuard(const StartGuard&) = delete;
  StartGuard& operator=(const StartGuard&) = delete;

 private:
  void watch(double timeout_s);

  std::mutex mutex_;
  std::condition_variable changed_;
  bool started_ = false;
  std::thread thread_;
};

}  // namespace tessera::dist
