// The parent process of a rank. mpirun starts the parent in place of the program. The parent starts
// the program, passes signals on, and reports to relaunch how the program ended (rank_record.h).
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

/// Runs a command as the rank that mpirun has given to this process. Returns the command's exit
/// code, with which the caller must exit. If a signal ended the command, ends this process by the
/// same signal, so mpirun sees how the command ended. SIGUSR1 and SIGUSR2 are passed on once the
/// command handles them. If the command still has no handler 60 s after SIGUSR2 arrived, it gets
/// SIGTERM, and SIGKILL 10 s later.
int run_as_rank(const std::vector<std::string>& command);

}  // namespace tessera::apps
