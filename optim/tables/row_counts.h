// Counts of the rows that a row-sparse table has sent so far.
#pragma once

#include <cstdint>

namespace tessera::optim {

/// Sums over all steps since the optimizer was made, of one rank. With them,
/// optim/plan/plan_tables.h gives the traffic to the byte.
struct RowCounts {
  int64_t looked_up = 0;  // distinct rows of each micro-batch of this rank
  int64_t sent = 0;       // rows of gradients that went to another rank
  int64_t asked = 0;      // stage 3: rows that this rank asked of another one
  int64_t served = 0;     // stage 3: rows whose values this rank sent
  int64_t touched = 0;    // rows of this rank that a step touched
  int64_t updated = 0;    // of these, those in steps with an update
  int64_t blocks = 0;     // blocks of 256 elements with touched rows, of this rank
  int64_t updates = 0;    // steps with an update
};

}  // namespace tessera::optim
