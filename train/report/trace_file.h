// Writes one trace of all ranks, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::train {

/// Starts to record events, and compares every rank's clock with rank 0's. Collective.
void begin_trace(const dist::World& world);

/// Stops recording, and gathers the events of all ranks. Rank 0 writes them to `path`, with times
/// that are converted to rank 0's clock and counted from begin_trace. Collective.
void write_trace(const std::string& path, const dist::World& world);

}  // namespace tessera::train
