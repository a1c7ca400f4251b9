// What the applications' command lines have in common: an error is one line and exit code 2.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

// CLI11 takes seconds to compile: only what adds options includes it.
namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace tessera::apps {

/// Reads the arguments. Returns the text of help where it was asked for, else an empty one. Throws
/// InputError, one line.
std::string parse_arguments(CLI::App& app, int argc, const char* const* argv);

/// These throw InputError, naming the flag.
void at_least(const char* flag, int64_t value, int64_t minimum);
void at_most(const char* flag, int64_t value, int64_t maximum);

/// Runs an application that is no rank of a job; returns its exit code: 0, 2 for bad input, 1 for
/// any other failure, which it prints.
int run_alone(const std::function<void()>& body);

}  // namespace tessera::apps
