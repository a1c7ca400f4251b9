// Counts of the rows of a row-sparse table that a rank has looked up, sent and updated so far.
#pragma once

#include <cstdint>

namespace tessera::optim {

/// Counts of one rank, summed over all steps since the optimizer was made. Evaluations are not
/// counted. From these counts optim/plan/plan_tables.h computes the exact number of bytes that the
/// rank has sent for the table's rows. For a frozen table, only `asked` and `served` are counted.
struct RowCounts {
  int64_t looked_up = 0;  // distinct rows of a micro-batch, summed over this rank's micro-batches
  int64_t sent = 0;       // gradient rows that this rank sent to other ranks
  int64_t asked = 0;      // stage 3: rows that this rank requested from other ranks
  int64_t served = 0;     // stage 3: rows whose values this rank sent to other ranks
  int64_t touched = 0;    // rows owned by this rank that any rank looked up; each once per step
  int64_t updated = 0;    // like `touched`, but only for steps whose update was launched
  int64_t blocks = 0;     // blocks of 256 elements with touched rows; each once per step
  int64_t updates = 0;    // steps whose update was launched, even if the device then skipped it

  bool operator==(const RowCounts&) const = default;
  /// Subtracts the counts of an earlier time, so that what was counted since then remains.
  RowCounts& operator-=(const RowCounts& before) {
    looked_up -= before.looked_up;
    sent -= before.sent;
    asked -= before.asked;
    served -= before.served;
    touched -= before.touched;
    updated -= before.updated;
    blocks -= before.blocks;
    updates -= before.updates;
    return *this;
  }
};

}  // namespace tessera::optim
