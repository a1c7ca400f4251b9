// The clocks of a job's hosts, which were started at different times and drift apart.
//
//   const dist::ClockReading first = dist::compare_clocks(world);
//   ... trace::now_ns() is noted ...
//   const dist::ClockReading last = dist::compare_clocks(world);
//   dist::on_rank_0(noted, first, last);               // what rank 0's clock showed then
#pragma once

#include <cstdint>

#include "dist/bootstrap.h"

namespace tessera::dist {

/// What rank 0's trace::now_ns() shows beyond this rank's.
struct ClockReading {
  int64_t at_ns = 0;      // on this rank's clock
  int64_t offset_ns = 0;  // to be added to it
  int64_t error_ns = 0;   // the offset's, at most: half of a message's way there and back
};

/// Rank 0 asks every rank for its time, several times, and takes the answer that came soonest. A
/// clock that cannot be told from rank 0's, as that of a rank on its host, has the offset 0.
/// Sends some hundred bytes a rank over MPI, which no ledger counts. Throws where a rank says
/// nothing for World::comm_timeout_s; a rank waits for all before it. Collective.
ClockReading compare_clocks(const World& world);

/// A time of this rank's clock on rank 0's, where the offset changes evenly from one reading to the
/// other.
int64_t on_rank_0(int64_t ns, const ClockReading& first, const ClockReading& last);

}  // namespace tessera::dist
