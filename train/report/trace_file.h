// One trace of all ranks, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::train {

/// Starts to record events, and compares the clocks of other hosts with rank 0's. Collective.
void begin_trace(const dist::World& world);

/// Gathers the events that every rank has recorded, with their times on rank 0's clock; rank 0
/// writes them. Collective.
void write_trace(const std::string& path, const dist::World& world);

}  // namespace tessera::train
