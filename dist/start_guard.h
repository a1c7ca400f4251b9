// Ends a process that waits in vain for the other ranks to start: MPI_Init and the first calls
// after it have no time limit of their own, so a rank that is stopped before them, or a launcher
// that is killed, would hold the others for ever.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera::dist {

/// Where it lives longer than --comm-timeout of the command line (10 s at least, by default
/// default_comm_timeout_s) it says so and ends the process with exit code 1, at which the launcher
/// ends the others. Where the process that has started this one dies meanwhile, it ends too.
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
