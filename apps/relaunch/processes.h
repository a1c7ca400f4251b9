// What relaunch and the parents of ranks ask the system about processes.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace tessera::apps {

/// Signals that this process takes one after the other, from a descriptor, rather than in handlers.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  ~SignalQueue();  // signals do again what they did before
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;

  int descriptor() const { return descriptor_; }
  struct Signal {
    int number = 0;            // 0: there is none now
    bool of_terminal = false;  // sent by the kernel, as for Ctrl-C, to all processes in front
  };
  Signal next();
  /// For a child, before it becomes another program.
  void restore_mask() const;

 private:
  sigset_t before_;
  int descriptor_ = -1;
};

struct StartOptions {
  int death_signal = 0;    // that it gets when this process dies
  bool own_group = false;  // signals to this process's group do not reach it
  int error_output = -1;   // becomes its standard error, unless negative
};
/// Starts a command, looked for in PATH. Throws InputError where it cannot be started.
pid_t start_process(const std::vector<std::string>& command, const SignalQueue& signals,
                    const StartOptions& options);

/// Whether the process handles a signal, which would end it otherwise.
bool handles_signal(pid_t process, int signal);

/// "SIGKILL", or "signal 99".
std::string signal_name(int signal);

std::string host_name();

}  // namespace tessera::apps
