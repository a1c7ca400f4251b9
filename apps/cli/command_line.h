// What the applications' command lines have in common: an error is one line and exit code 2.
#pragma once

#include <cstdint>
#include <functional>

namespace tessera::apps {

/// These throw InputError, naming the flag.
void at_least(const char* flag, int64_t value, int64_t minimum);
void at_most(const char* flag, int64_t value, int64_t maximum);

/// Runs an application that is no rank of a job; returns its exit code: 0, 2 for bad input, 1 for
/// any other failure, which it prints.
int run_alone(const std::function<void()>& body);

}  // namespace tessera::apps
