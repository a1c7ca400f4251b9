// One trace of all ranks, for ui.perfetto.dev or chrome://tracing.
#pragma once

#include <string>

#include "dist/bootstrap.h"

namespace tessera::train {

/// Gathers the events that every rank has recorded; rank 0 writes them. Collective.
void write_trace(const std::string& path, const dist::World& world);

}  // namespace tessera::train
