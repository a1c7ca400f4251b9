// The parent process of a rank. mpirun starts the parent in place of the program. The parent starts
// the program, passes signals on, and reports to relaunch how the program ended (rank_record.h).
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

/// Runs a command as this process's rank. This process ends as the command does, with the same exit
/// code or by the same signal, so that mpirun notices no difference.
int run_as_rank(const std::vector<std::string>& command);

}  // namespace tessera::apps
