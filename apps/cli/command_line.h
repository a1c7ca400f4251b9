// Runs an application whose processes are the ranks of a job, with the conventions of all programs
// (apps/console/console.h).
#pragma once

#include <functional>

#include "apps/console/console.h"
#include "dist/bootstrap.h"

namespace tessera::apps {

/// As dist::run does.
int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body);

}  // namespace tessera::apps
