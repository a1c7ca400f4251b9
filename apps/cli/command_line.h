// Runs an application whose processes are the ranks of a job, with the conventions of all programs
// (apps/console/console.h).
#pragma once

#include <functional>

#include "apps/console/console.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Calls dist::run with `body`, and returns the exit code. Ends the job with an error if text that
/// `body` printed to standard output was lost.
///
/// Exception: when Ctrl-C has stopped a run (train::was_interrupted), a job of one rank does not
/// return an exit code. Instead, the process ends by SIGINT after `body` has returned.
int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body);

}  // namespace tessera::apps
