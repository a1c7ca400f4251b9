#include "apps/cli/command_line.h"

#include <cstdio>
#include <exception>

#include "core/error.h"

namespace tessera::apps {

void at_least(const char* flag, int64_t value, int64_t minimum) {
  if (value < minimum) fail_input("{} is {}, expected at least {}", flag, value, minimum);
}

void at_most(const char* flag, int64_t value, int64_t maximum) {
  if (value > maximum) fail_input("{} is {}, expected at most {}", flag, value, maximum);
}

int run_alone(const std::function<void()>& body) {
  try {
    body();
    return 0;
  } catch (const InputError& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}

}  // namespace tessera::apps
