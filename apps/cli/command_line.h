// Runs an application whose processes are the ranks of a job, with the conventions of all programs
// (apps/console/console.h).
#pragma once

#include <functional>

#include "apps/console/console.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// Calls dist::run with `body`. Ends the job with an error if text that `body` printed to standard
/// output was lost. Returns the exit code. But if the job has one rank, and Ctrl-C has made a run
/// save a checkpoint and end (train::was_interrupted), ends the process by SIGINT after `body` has
/// returned.
int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body);

}  // namespace tessera::apps
