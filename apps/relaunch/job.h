// Runs one job of relaunch: mpirun starts a parent process for each rank, and this parent starts
// the rank (rank_parent.h).
#pragma once

#include <string>
#include <vector>

#include "apps/relaunch/processes.h"
#include "apps/relaunch/verdict.h"

namespace tessera::apps {

/// The requests that relaunch has received by signals, during all of its jobs.
struct Asked {
  bool to_stop = false;       // SIGTERM or SIGUSR2: the run saves and ends
  bool to_interrupt = false;  // SIGINT: mpirun ends the run, which need not save
};

/// Writes a message of relaunch to standard error, on a new line after the ranks' output so far.
void say(const std::string& text);

/// Starts `command`, which is mpirun with its arguments, and waits for its end. Forwards the ranks'
/// standard error to that of this process. Once all ranks have started, forwards SIGTERM and
/// SIGUSR2 to them as SIGUSR2, and SIGUSR1 unchanged. Throws InputError if the command cannot be
/// executed.
JobEnd run_one_job(const std::vector<std::string>& command, int ranks, SignalQueue& signals,
                   Asked& asked);

}  // namespace tessera::apps
