// Ends a process if the other ranks do not start in time. MPI_Init and the first calls after it
// have no time limit. If a rank is stopped before it makes these calls, or if the launcher is
// killed, the other ranks would wait for ever.
#pragma once

#include <condition_variable>
#include <mutex>
#include <thread>

namespace tessera::dist {

/// The lower bound of a start's time limit. On a busy machine, a normal start takes seconds.
inline constexpr double least_start_timeout_s = 10;

/// Returns the time limit in seconds that --comm-timeout sets on the command line, or
/// default_comm_timeout_s. Ignores a malformed value, because the program parses and checks its
/// command line after the start, when the ranks can communicate. A value in a file of --config is
/// unknown at the start, and takes effect after it.
double comm_timeout_in(int argc, const char* const* argv);

/// If a guard lives longer than the timeout, it prints an error and ends the process with exit code
/// 1. The launcher then ends the other ranks. The timeout is `comm_timeout_s`, but at least
/// least_start_timeout_s and at most 10^7 s. Time in which this process itself is stopped does not
/// count. The guard also ends the process if the parent process dies while the guard lives.
class StartGuard {
 public:
  explicit StartGuard(double comm_timeout_s);
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
