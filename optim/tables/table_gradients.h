// The gradient of a row-sparse table, from the rows of a micro-batch to their sum at the owners.
//
//   backward       writes the gradient of the rows that the micro-batch looked up, [n, C]
//   send()         each rank sends its rows, in ascending order, to their owners
//   the owner      adds received rows to its sums of touched rows, in f32, in order of micro-batch
//   close()        puts the touched rows in ascending order, for norm and update
//
// Shapes use the letters of optim/tables/table_info.h.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "optim/kernels/rows.h"
#include "optim/tables/row_exchange.h"
#include "optim/tables/row_slots.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

/// The gradient sums of the rows that a step has touched so far, at their owner. The communicator's
/// thread may still add a contribution after the optimizer is destroyed, so the optimizer and the
/// thread share ownership of this object.
class TouchedSums {
 public:
  /// `capacity`: the most rows owned by this rank that a step may touch. `asked`: the most rows of
  /// a contribution. A contribution has one micro-batch's gradients of rows that this rank owns.
  TouchedSums(const TableInfo& info, dist::Communicator& communicator, int64_t capacity,
              int64_t asked);

  const RowSlots& rows() const { return rows_; }
  const Tensor& sums() const { return sums_; }
  void clear() { rows_.clear(); }
  /// Adds a contribution: for each i, adds row i of `values` to the sum of rows[i].
  void add(std::span<const int32_t> rows, const RowList& values);
  /// Adds the contributions of all ranks in ascending order of rank: counts[r] rows from rank r.
  void add_all(const Tensor& rows, const Tensor& values, const std::vector<int64_t>& counts);

 private:
  RowSlots rows_;
  Tensor sums_;          // f32 [capacity, C]: row s is the gradient sum of rows_.rows()[s]
  Tensor slots_;         // i32 on the host: for each row of a contribution, its row in sums_
  Tensor device_slots_;  // on a GPU: a copy of slots_
};

class TableGradients {
 public:
  TableGradients(const TableInfo& info, dist::Communicator& communicator);

  /// Begins a micro-step. The first micro-step of a step clears the touched rows of the previous
  /// step. If this step may touch more rows than the buffers can hold, allocates larger buffers.
  void begin(const MicroStep& micro_step);
  /// Called at the end of a forward. Starts to gather how many rows each rank will send to each
  /// owner. `rows`: the rows that were prefetched for the forward, or looked up by it. used[s] is 1
  /// if rows.rows()[s] was really looked up, and 0 if this row was only prefetched. If `used` is
  /// empty, all rows were looked up.
  void begin_backward(const RowSlots& rows, std::span<const uint8_t> used);
  /// Zeroes the gradient of the looked-up rows, and returns the whole gradient buffer, [n, C].
  /// Called at most once per micro-step.
  Tensor open();
  /// Sends the gradient to the owners of its rows. Rows that no gradient reached are sent as zeros.
  void send();
  /// Waits until the contributions of the micro-step are in the sums.
  void wait();

  /// Called when all micro-steps are over: sorts the touched rows of this rank.
  void close();
  // After close():
  const SortedRows& touched() const { return sorted_; }
  const Tensor& sums() const { return touched_->sums(); }
  /// Totals since the optimizer was made: `looked_up`, `sent`, `touched` and `blocks`. The other
  /// members of RowCounts stay 0.
  const RowCounts& counts() const { return total_; }
  /// The blocks of 256 elements with touched rows, for the norm.
  const TouchedBlocks& blocks() const { return blocks_; }

 private:
  void grow(int64_t micro_batches);
  void find_blocks();

  const TableInfo& info_;
  dist::Communicator& communicator_;
  Tensor gradient_;        // [n, C], in the table's dtype
  SortedRows sent_;        // the rows that the micro-batch sends
  int64_t looked_up_ = 0;  // number of rows given to begin_backward()
  bool contributes_ = false;
  bool opened_ = false;
  bool begun_ = false;  // begin_backward() was called in this micro-step
  // Used only with several ranks:
  std::optional<RowCountsOfRanks> counts_;
  Tensor outgoing_;       // the gradient rows to send, in ascending order of row index
  Tensor incoming_rows_;  // i32
  Tensor incoming_values_;
  dist::Work arrived_;
  // For the rows that this rank owns:
  std::shared_ptr<TouchedSums> touched_;
  SortedRows sorted_;
  Tensor block_numbers_;  // i64 on the host: the blocks that contain touched rows
  Tensor block_firsts_;   // i32 on the host: for each block, the index in sorted_ of its first row
  // On a GPU: copies of block_numbers_ and block_firsts_.
  Tensor device_numbers_;
  Tensor device_firsts_;
  TouchedBlocks blocks_;
  RowCounts total_;
};

}  // namespace tessera::optim
