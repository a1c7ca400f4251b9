// Signals and child processes, for relaunch and for the parent process that relaunch puts between
// mpirun and each rank (rank_parent.h).
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::apps {

/// Blocks signals and reads them one by one from a descriptor, in place of signal handlers.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  ~SignalQueue();  // restores the signal mask
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_; }
  struct Signal {
    int number = 0;            // 0: none is pending
    bool of_terminal = false;  // sent by the terminal to its foreground process group (Ctrl-C)
  };
  Signal next();
  /// True if this signal has arrived and next() has not returned it yet.
  bool pending(int signal) const;
  /// Restores the signal mask in a child, before it executes another program.
  void restore_mask() const;

 private:
  sigset_t before_;
  int descriptor_ = -1;
};

struct StartOptions {
  int death_signal = 0;    // sent to the child when this process dies
  bool own_group = false;  // true: signals to this process's group do not reach the child
  int error_output = -1;   // descriptor for the child's standard error; negative: inherited
};
/// Starts a command, which is looked up in PATH. Throws InputError if it cannot be executed, and
/// Error if the system cannot make a process.
pid_t start_process(const std::vector<std::string>& command, const SignalQueue& signals,
                    const StartOptions& options);

/// True if the process has a handler for the signal, so that the signal does not end it.
bool handles_signal(pid_t process, int signal);

/// Returns the name of a signal: "SIGKILL", or "signal 99" for one without a name.
std::string signal_name(int signal);

std::string host_name();

}  // namespace tessera::apps
