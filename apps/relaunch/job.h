// One job of relaunch: mpirun, with a parent for each rank.
#pragma once

#include <string>
#include <vector>

#include "apps/relaunch/processes.h"
#include "apps/relaunch/verdict.h"

namespace tessera::apps {

/// What relaunch was told by signals, over all of its jobs.
struct Asked {
  bool to_stop = false;       // SIGTERM or SIGUSR2: the run saves and ends
  bool to_interrupt = false;  // SIGINT: the run ends as it is
};

/// Writes a line of relaunch's own to standard error, after what ranks have written there.
void say(const std::string& text);

/// Starts `command`, which is mpirun with its arguments, and waits for its end. What ranks write to
/// their standard error goes to this process's. SIGTERM and SIGUSR2 reach the ranks as SIGUSR2 and
/// SIGUSR1 as itself, once all of them have begun. Throws InputError where it cannot be started.
JobEnd run_one_job(const std::vector<std::string>& command, int ranks, SignalQueue& signals,
                   Asked& asked);

}  // namespace tessera::apps
