// A test's access to the clock of traces and waiting times (trace::now_ns).
#pragma once

#include <cstdint>

namespace tessera::trace {

/// For tests: shifts this process's clock by `ns`, as if its host had been started `ns` earlier. A
/// later call replaces the shift.
void skew_clock(int64_t ns);

}  // namespace tessera::trace
