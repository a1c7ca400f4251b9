// What a process tells the program that has started it, in a way that outlives it: a small file in
// memory, which both map, so that the last finished step can be read also after a SIGKILL.
// `relaunch` starts ranks like this. The process inherits the open file, whose number the
// environment variable TESSERA_RUN_STATUS has; without it nothing is told to anybody.
//
//   RunStatusFile file;                                       // the starter's
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
  error,    // any other named error, as a loss that is not finite
  stalled,  // a collective in which nothing has moved for --comm-timeout
};

struct RunStatus {
  int64_t finished_steps = 0;  // counted from the beginning of the run, over all its processes
  RunFailure failure = RunFailure::none;
  std::vector<int> absent = {};  // ranks for which a stalled collective has waited; at most 64
  bool waits = false;            // for other ranks, in a collective in which nothing moves
};

/// These do nothing in a process that has no such file. Of several failures the first counts.
void publish_finished_steps(int64_t steps);
void publish_waiting(bool waits);
void publish_failure(RunFailure failure, std::span<const int> absent = {});

/// The starter's side.
class RunStatusFile {
 public:
  /// Throws Error where the system has no such files. Processes that are started while this lives
  /// inherit it.
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
