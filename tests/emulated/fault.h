// Runs code that ends its process, for tests of the emulator's fatal errors.
#pragma once

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "tests/support/catch.h"

namespace emulated_tests {

struct Faulted {
  // True if SIGSEGV or SIGABRT has ended the process, or if its exit status is not 0. In a build
  // with the address sanitizer, the sanitizer catches the signal and exits with such a status.
  bool by_signal;
  std::string says;
};

/// Runs `body` in a process of its own. Returns how the process ended, and what it printed.
template <class Body>
Faulted fault_of(const Body& body) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    (void)dup2(ends[1], STDERR_FILENO);
    (void)dup2(ends[1], STDOUT_FILENO);  // Catch reports the signal on stdout
    body();
    _exit(0);
  }
  close(ends[1]);
  std::string says;
  char buffer[512];
  for (ssize_t n; (n = read(ends[0], buffer, sizeof buffer)) > 0;) says.append(buffer, size_t(n));
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const bool sanitized = WIFEXITED(status) && WEXITSTATUS(status) != 0;
  const int signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  return {signal == SIGSEGV || signal == SIGABRT || sanitized, says};
}

}  // namespace emulated_tests
