#include "apps/console/console.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <system_error>

#include "core/error.h"
#include "core/text/control_character.h"
#include "core/text/error_text.h"
#include "core/text/output_file.h"

namespace tessera::apps {

std::vector<std::string> given_flags(std::initializer_list<std::pair<const char*, bool>> flags) {
  std::vector<std::string> given;
  for (const auto& [flag, is_given] : flags) {
    if (is_given) given.emplace_back(flag);
  }
  return given;
}

void at_least(const char* flag, int64_t value, int64_t minimum) {
  if (value < minimum) fail_input("{} is {}, expected at least {}", flag, value, minimum);
}

void at_most(const char* flag, int64_t value, int64_t maximum) {
  if (value > maximum) fail_input("{} is {}, expected at most {}", flag, value, maximum);
}

void positive(const char* flag, float value) {
  if (std::isfinite(value) && value > 0) return;
  fail_input("{} is {}, expected a number greater than 0", flag, value);
}

void within(const char* flag, float value, float minimum, float below) {
  if (value >= minimum && value < below) return;
  if (std::isinf(below)) {
    fail_input("{} is {}, expected a finite number of at least {}", flag, value, minimum);
  }
  fail_input("{} is {}, expected a number from {} to below {}", flag, value, minimum, below);
}

namespace {

// Opens /dev/null in place of standard streams that were closed before the program started.
// Otherwise a file opened later would get the closed stream's descriptor, and printed text would go
// into that file. Standard output is opened for reading only, so that writing to it is an error.
void hold_closed_streams() {
  constexpr int modes[] = {O_WRONLY, O_RDONLY, O_WRONLY};
  for (int stream = STDIN_FILENO; stream <= STDERR_FILENO; ++stream) {
    if (::fcntl(stream, F_GETFD) < 0 && errno == EBADF) (void)::open("/dev/null", modes[stream]);
  }
}

}  // namespace

void print_error(const std::exception& error) {
  std::fflush(stdout);  // so that earlier output comes first if both streams go to one file
  // A path in the message may contain line ends, and control characters that a terminal would obey.
  std::fputs(fmt::format("error: {}\n", with_escaped_controls(error_text(error))).c_str(), stderr);
}

void check_output() {
  errno = 0;
  const bool flushed = std::fflush(stdout) == 0;
  if (flushed && std::ferror(stdout) == 0) return;
  fail("standard output: writing failed: {}",
       flushed ? "a part of what was printed is lost" : std::strerror(errno));
}

void outlive_readers() { ::signal(SIGPIPE, SIG_IGN); }

void prepare_streams() {
  fail_beyond_file_size_limit();
  hold_closed_streams();
}

int run_and_check(const std::function<int()>& body) {
  try {
    const int result = body();
    check_output();
    return result;
  } catch (const std::filesystem::filesystem_error&) {
    throw;  // the error is about a file, even if writing to standard output has failed before
  } catch (const std::system_error& error) {
    // Replaces fmt's message, which does not say that writing to standard output failed.
    if (std::ferror(stdout) == 0) throw;
    fail("standard output: writing failed: {}", error.code().message());
  }
}

int run_alone(const std::function<void()>& body) {
  return run_tool([&] {
    body();
    return 0;
  });
}

int run_tool(const std::function<int()>& body) {
  prepare_streams();
  try {
    return run_and_check(body);
  } catch (const InputError& error) {
    print_error(error);
    return 2;
  } catch (const std::exception& error) {
    print_error(error);
    return 1;
  }
}

}  // namespace tessera::apps
