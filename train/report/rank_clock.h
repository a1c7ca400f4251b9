// Converts times of this rank to rank 0's clock, so that events of all ranks can be shown together.
#pragma once

#include <cstdint>
#include <vector>

#include "core/trace.h"
#include "dist/bootstrap.h"

namespace tessera::train {

/// Compares this rank's clock with rank 0's at the start of a run. Collective.
void begin_rank_clock(const dist::World& world);

/// Compares the clocks again, because clocks of different hosts drift apart. Converts the times of
/// `events` to rank 0's clock. Returns the time at which begin_rank_clock was called, on rank 0's
/// clock. If begin_rank_clock was not called, returns the time of this call. All ranks get the same
/// time. Collective.
int64_t to_clock_of_rank_0(std::vector<trace::Event>& events, const dist::World& world);

}  // namespace tessera::train
