// Lets a test shift trace::now_ns, the clock of traces and waiting times.
#pragma once

#include <cstdint>

namespace tessera::trace {

/// For tests: shifts this process's clock by `ns`, as if its host had been started `ns` earlier.
/// Another call replaces the shift.
void skew_clock(int64_t ns);

}  // namespace tessera::trace
