// The status that a process publishes for the program that started it (the starter), such as
// `relaunch`. The status is a small file in memory that the process and the starter map. Therefore
// the starter can read the number of finished training steps even after a SIGKILL of the process.
// The process inherits the open file. The file's descriptor number is in the environment variable
// TESSERA_RUN_STATUS. Without the variable nothing is published.
//
//   RunStatusFile file;                                       // in the starter
//   setenv(run_status_variable, file.number().c_str(), 1);
//   ... start the process, wait for its end ...
//   RunStatus status = file.read();
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

inline constexpr const char* run_status_variable = "TESSERA_RUN_STATUS";

enum class RunFailure : int32_t {
  none,
  input,    // bad input: the same command fails again
  error,    // any other error that the process reported, such as a loss that is not finite
  stalled,  // a collective or the start of MPI reached its time limit (see --comm-timeout)
};

struct RunStatus {
  int64_t finished_steps = 0;  // counted from the run's first start, not from a restart
  RunFailure failure = RunFailure::none;
  /// The first 64 of the ranks that a stalled collective waited for. Empty if they are not known.
  std::vector<int> absent = {};
  /// True while a call over MPI waits for other ranks, after its first 50 ms of waiting.
  bool waits = false;
  /// The process's number of threads, as set_thread_count has set it; 0: not set yet.
  int threads = 0;
};

/// These functions publish to the file that this process has inherited. Without such a file they do
/// nothing. Only the first failure is published.
void publish_finished_steps(int64_t steps);
void publish_waiting(bool waits);
void publish_threads(int threads);
void publish_failure(RunFailure failure, std::span<const int> absent = {});

/// The status file, for the program that starts the process.
class RunStatusFile {
 public:
  /// Makes the file. Processes that are started while the object lives inherit the file. Throws
  /// Error if the system cannot make or map the file.
  RunStatusFile();
  ~RunStatusFile();
  RunStatusFile(const RunStatusFile&) = delete;
  RunStatusFile& operator=(const RunStatusFile&) = delete;

  std::string number() const { return std::to_string(descriptor_); }
  RunStatus read() const;

 private:
  int descriptor_ = -1;
  void* mapped_ = nullptr;
};

}  // namespace tessera
