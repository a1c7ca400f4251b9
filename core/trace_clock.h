// The clock of traces and waiting times (trace::now_ns) as a test sees it.
#pragma once

#include <cstdint>

namespace tessera::trace {

/// For tests: from now on this process's clock shows `ns` more, as that of a host which was started
/// so much earlier. Of several calls the last counts.
void skew_clock(int64_t ns);

}  // namespace tessera::trace
