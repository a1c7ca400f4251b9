// The clock of this rank against rank 0's, for events that ranks show together.
#pragma once

#include <vector>

#include "core/trace.h"
#include "dist/bootstrap.h"

namespace tessera::train {

/// Compares the clocks of other hosts with rank 0's. Collective.
void begin_rank_clock(const dist::World& world);

/// Compares the clocks again, and moves the times of `events` to rank 0's clock. Collective.
void to_clock_of_rank_0(std::vector<trace::Event>& events, const dist::World& world);

}  // namespace tessera::train
