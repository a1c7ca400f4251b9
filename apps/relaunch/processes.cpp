#include "apps/relaunch/processes.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <optional>

#include "core/error.h"

namespace tessera::apps {
namespace {

// Returns the value of the line "name:\tvalue" in /proc/PID/status; empty without such a line.
std::string status_line(pid_t process, const std::string& name) {
  std::ifstream file(fmt::format("/proc/{}/status", process));
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(name + ":"))
      return line.substr(line.find_first_not_of(" \t", name.size() + 1));
  }
  return "";
}

// Runs in the child. Executes the command, or reports errno to the parent if that fails.
[[noreturn]] void become(std::vector<char*>& arguments, int report) {
  ::execvp(arguments[0], arguments.data());
  const int error = errno;
  [[maybe_unused]] const ssize_t written = ::write(report, &error, sizeof(error));
  ::_exit(127);
}

}  // namespace

SignalQueue::SignalQueue(const std::vector<int>& signals) {
  // This process may have inherited an ignored SIGCHLD from its parent. While SIGCHLD is ignored,
  // waitpid cannot tell how children ended.
  ::signal(SIGCHLD, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  sigprocmask(SIG_BLOCK, &set, &before_);
  descriptor_ = ::signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  TESSERA_CHECK(descriptor_ >= 0, "signalfd: {}", std::strerror(errno));
}

SignalQueue::~SignalQueue() {
  ::close(descriptor_);
  restore_mask();
}

SignalQueue::Signal SignalQueue::next() {
  signalfd_siginfo info{};
  if (::read(descriptor_, &info, sizeof(info)) != sizeof(info)) return {};
  return {.number = static_cast<int>(info.ssi_signo), .of_terminal = info.ssi_code == SI_KERNEL};
}

bool SignalQueue::pending(int signal) const {
  sigset_t set;
  sigpending(&set);
  return sigismember(&set, signal) == 1;
}

void SignalQueue::restore_mask() const { sigprocmask(SIG_SETMASK, &before_, nullptr); }

pid_t start_process(const std::vector<std::string>& command, const SignalQueue& signals,
                    const StartOptions& options) {
  std::vector<std::string> texts = command;
  std::vector<char*> arguments;
  for (std::string& text : texts) arguments.push_back(text.data());
  arguments.push_back(nullptr);
  std::array<int, 2> report{};  // closed by exec: end of file means success
  TESSERA_CHECK(::pipe2(report.data(), O_CLOEXEC) == 0, "pipe: {}", std::strerror(errno));
  const pid_t parent = ::getpid();
  const pid_t child = ::fork();
  TESSERA_CHECK(child >= 0, "fork: {}", std::strerror(errno));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (::getppid() != parent) ::_exit(127);  // the parent died before prctl
    if (options.own_group) ::setpgid(0, 0);
    ::signal(SIGPIPE, SIG_DFL);
    signals.restore_mask();
    if (options.error_output >= 0) ::dup2(options.error_output, STDERR_FILENO);
    become(arguments, report[1]);
  }
  ::close(report[1]);
  int error = 0;
  const ssize_t bytes = ::read(report[0], &error, sizeof(error));
  ::close(report[0]);
  if (bytes == sizeof(error))
    fail_input("{}: cannot be started: {}", command[0], std::strerror(error));
  return child;
}

bool handles_signal(pid_t process, int signal) {
  const std::string mask = status_line(process, "SigCgt");
  return !mask.empty() && ((std::strtoull(mask.c_str(), nullptr, 16) >> (signal - 1)) & 1) != 0;
}

std::string signal_name(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return name == nullptr ? fmt::format("signal {}", signal) : fmt::format("SIG{}", name);
}

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown host";
}

}  // namespace tessera::apps
