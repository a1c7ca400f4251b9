// Runs a program's main function with the conventions of all: bad input is one line and exit code
// 2, and the exit code is 1 where what was printed has not arrived.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::apps {

/// These throw InputError, naming the flag.
void at_least(const char* flag, int64_t value, int64_t minimum);
void at_most(const char* flag, int64_t value, int64_t maximum);

/// Flushes standard output. Throws Error where something that was printed is lost, as on a full
/// disk; run_alone and run_job call it at the end.
void check_output();

/// Runs a program that is no rank of a job; returns its exit code: 0, 2 for bad input, 1 for any
/// other failure, which it prints.
int run_alone(const std::function<void()>& body);
/// The same for a program whose exit code is a result, as that of diff(1): what `body` returns
/// where nothing fails.
int run_tool(const std::function<int()>& body);

/// For these and run_job: what comes before a program's body, and the body with check_output.
void prepare_streams();
int run_and_check(const std::function<int()>& body);

}  // namespace tessera::apps
