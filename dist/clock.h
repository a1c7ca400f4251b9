// Converts a time of this rank's clock to rank 0's clock. The clocks of different hosts start at
// different times and drift apart.
//
//   const dist::ClockReading first = dist::compare_clocks(world);
//   ... trace::now_ns() is noted ...
//   const dist::ClockReading last = dist::compare_clocks(world);
//   dist::on_rank_0(noted, first, last);               // the noted time on rank 0's clock
#pragma once

#include <cstdint>

#include "dist/bootstrap.h"

namespace tessera::dist {

/// A comparison of this rank's clock (trace::now_ns()) with rank 0's clock.
struct ClockReading {
  int64_t at_ns = 0;      // the time of the comparison, on this rank's clock
  int64_t offset_ns = 0;  // rank 0's time minus this rank's
  int64_t error_ns = 0;   // bound on the measured offset's error: half of a round trip
  int64_t rank_0_ns = 0;  // rank 0's time when compare_clocks began; all ranks get this value
};

/// Compares clocks. Rank 0 asks each rank in turn for its time, several times, and takes the answer
/// with the shortest round trip. If the measured offset is between -error_ns and error_ns,
/// offset_ns is set to 0, which is right for a rank on rank 0's host. For a rank on another host,
/// this 0 may be wrong by up to 2 * error_ns. `world` may be a group (dist/mesh.h). Then only the
/// group's ranks take part, and rank 0 is rank 0 of the group. Sends a few hundred bytes for each
/// rank over MPI. The traffic ledger does not count these bytes, except for a gather of four bytes
/// from each rank, which counts as Traffic::other. Throws if a rank does not come within
/// the communicator's time limit, or then does not answer within World::comm_timeout_s. Collective.
ClockReading compare_clocks(const World& world);

/// Converts a time of this rank's clock to rank 0's clock, with the offset interpolated linearly
/// between the two readings.
int64_t on_rank_0(int64_t ns, const ClockReading& first, const ClockReading& last);

}  // namespace tessera::dist
