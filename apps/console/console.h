// Runs a program's main function with the conventions that all programs share. On bad input, the
// program prints one line and ends with exit code 2. Any other failure, such as a full disk, gives
// exit code 1.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <initializer_list>
#include <string>
#include <utility>
#include <vector>

namespace tessera::apps {

/// at_least() and at_most() throw InputError, naming the flag, if the value is out of range.
void at_least(const char* flag, int64_t value, int64_t minimum);
void at_most(const char* flag, int64_t value, int64_t maximum);
/// positive() and within() throw InputError, naming the flag, if the value is invalid. positive()
/// requires a finite value above 0. within() requires a finite value in [minimum, below); `below`
/// may be infinity.
void positive(const char* flag, float value);
void within(const char* flag, float value, float minimum, float below);
/// Returns the flags that are paired with true, in the given order.
std::vector<std::string> given_flags(std::initializer_list<std::pair<const char*, bool>> flags);

/// Flushes standard output. Throws Error if printed text was lost, for instance on a full disk.
/// run_alone, run_tool and run_job call check_output at the end.
void check_output();

/// Prints the message of `error` as one line on standard error. Does not end the program.
void print_error(const std::exception& error);

/// From now on, a write to a pipe without a reader fails with an error, as a write to a full disk
/// does. By default, SIGPIPE would end the program. For programs that must still save their work.
void outlive_readers();

/// Runs a program that is not a rank of a job. Returns its exit code: 0 for success, 2 for bad
/// input, 1 for any other failure. Prints the failure's error message.
int run_alone(const std::function<void()>& body);
/// Like run_alone, for a program whose exit code reports a result, such as `checkpoint diff`.
/// Returns what `body` returns if nothing fails.
int run_tool(const std::function<int()>& body);

/// The two steps of run_alone, run_tool and run_job: prepare_streams sets up the standard streams,
/// and makes writes beyond the file size limit fail with an error. Then run_and_check runs the body
/// and calls check_output.
void prepare_streams();
int run_and_check(const std::function<int()>& body);

}  // namespace tessera::apps
