// Runs an application's main function with the conventions of all: bad input is one line and exit
// code 2, and the exit code is 1 where what was printed has not arrived.
#pragma once

#include <cstdint>
#include <functional>

#include "dist/bootstrap.h"

namespace tessera::apps {

/// These throw InputError, naming the flag.
void at_least(const char* flag, int64_t value, int64_t minimum);
void at_most(const char* flag, int64_t value, int64_t maximum);

/// Flushes standard output. Throws Error where something that was printed is lost, as on a full
/// disk; run_alone and run_job call it at the end.
void check_output();

/// Runs an application that is no rank of a job; returns its exit code: 0, 2 for bad input, 1 for
/// any other failure, which it prints.
int run_alone(const std::function<void()>& body);

/// Runs an application whose processes are the ranks of a job, as dist::run does.
int run_job(int argc, char** argv, const std::function<int(dist::World&)>& body);

}  // namespace tessera::apps
