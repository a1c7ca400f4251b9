// The parent process of a rank. mpirun starts the parent in place of the program. The parent starts
// the program, passes signals on, and reports to relaunch how the program ended (rank_record.h).
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

/// Runs a command as this process's rank, and ends as the command does: with its exit code, or by
/// the same signal, so that mpirun sees what it would see without a parent.
int run_as_rank(const std::vector<std::string>& command);

}  // namespace tessera::apps
