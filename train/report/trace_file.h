// Writes one trace of all ranks, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::train {

/// Starts to record events, and compares every rank's clock with rank 0's. Collective.
void begin_trace(const dist::World& world);

/// Stops recording, gathers the events of all ranks, and converts their times to the time on rank
/// 0's clock since begin_trace. Rank 0 writes the events to `path`. Collective.
void write_trace(const std::string& path, const dist::World& world);

}  // namespace tessera::train
