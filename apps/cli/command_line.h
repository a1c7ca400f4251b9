// Runs an application whose processes are the ranks of a job, with the conventions of all programs
// (apps/console/console.h).
#pragma once

#include <functional>

#include "apps/console/console.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Calls dist::run with `body`. Ends the job with an error if text that `body` printed to standard
/// output was lost. If Ctrl-C has ended a run of one rank after a checkpoint
/// (train::was_interrupted), ends the process by SIGINT after all results are written.
int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body);

}  // namespace tessera::apps
