// As long as an OpenFileLimit exists, this process can open at most `spare` more files. Tests use
// the limit to imitate a machine whose resources are used up. The limit applies even to root.
#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "core/error.h"
#include "tests/support/resource_limit.h"

namespace tessera::test {

class OpenFileLimit : public ResourceLimit {
 public:
  explicit OpenFileLimit(int spare)
      : ResourceLimit(RLIMIT_NOFILE, static_cast<rlim_t>(lowest_free() + spare)) {}

 private:
  // A new file gets the lowest free descriptor, and descriptors must be below the limit.
  static int lowest_free() {
    const int lowest = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
    ::close(lowest);
    return lowest;
  }
};

/// Runs `body`, which can open only `spare` files. Returns the message of the Error that it throws.
/// For an InputError, "bad input: " precedes the message.
template <class Body>
std::string failure_with_files(int spare, Body&& body) {
  const OpenFileLimit limit(spare);
  try {
    body();
  } catch (const InputError& error) {
    return std::string("bad input: ") + error.what();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace tessera::test
