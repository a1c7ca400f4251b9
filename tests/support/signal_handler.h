// Reads the handler of a signal, for tests of code that sets and restores handlers.
#pragma once

#include <signal.h>

namespace tessera::test {

/// Returns the process's handler of a signal, such as SIG_DFL.
inline auto handler_of(int signal) {
  struct sigaction action {};
  sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

}  // namespace tessera::test
