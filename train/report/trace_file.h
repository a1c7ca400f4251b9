// Writes one trace of all ranks, to be opened in ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::train {

/// Starts to record events, and compares the clocks of other hosts with rank 0's. Collective.
void begin_trace(const dist::World& world);

/// Stops recording, and gathers the events of all ranks with their times on rank 0's clock. Rank 0
/// writes them to `path`. Collective.
void write_trace(const std::string& path, const dist::World& world);

}  // namespace tessera::train
