// The gradient of a row-sparse table, from the rows of a micro-batch to their sum at the owners.
//
//   backward       writes the gradient of the rows that the micro-batch looked up, [n, C]
//   send()         each rank sends its rows, in ascending order, to their owners
//   the owner      adds them to its sums of touched rows, in f32 and in order of micro-batch
//   close()        puts the touched rows in ascending order, for norm and update
#pragma once

#include <optional>

#include "optim/kernels/rows.h"
#include "optim/tables/row_exchange.h"
#include "optim/tables/row_slots.h"
#include "optim/zero/step_state.h"

namespace tessera::optim {

class TableGradients {
 public:
  TableGradients(const TableInfo& info, dist::Communicator& communicator);

  /// Begins a micro-step; the first one of a step forgets the touched rows of the step before, and
  /// makes room for those of `micro_step.micro_batches`.
  void begin(const MicroStep& micro_step);
  /// Called at the end of a forward that has looked up `rows`: starts to gather the counts.
  void begin_backward(const RowSlots& rows);
  /// The gradient of the looked-up rows, zeroed. Called at most once in a micro-step.
  Tensor open();
  /// Sends the gradient to the owners of its rows. Rows that no gradient reached count as zeros.
  void send();
  /// Waits until the contributions of the micro-step are in the sums.
  void wait();

  /// Called when all micro-steps are over: sorts the touched rows of this rank.
  void close();
  // After close():
  const SortedRows& touched() const { return sorted_; }
  const Tensor& sums() const { return sums_; }
  /// Rows that were sent and touched so far.
  const RowCounts& counts() const { return total_; }
  /// The blocks of 256 elements with touched rows, for the norm.
  const TouchedBlocks& blocks() const { return blocks_; }

 private:
  void grow(int64_t micro_batches);
  void find_blocks();
  Tensor copied(const Tensor& list, const Tensor& buffer) const;
  void fold_all(const Tensor& rows, const Tensor& values, const std::vector<int64_t>& by_source);
  void fold(std::span<const int32_t> rows, const RowList& values);

  const TableInfo& info_;
  dist::Communicator& communicator_;
  Tensor gradient_;        // [n, C], in the table's dtype
  SortedRows sent_;        // the rows of the micro-batch
  int64_t looked_up_ = 0;  // rows of the micro-batch
  bool contributes_ = false;
  bool opened_ = false;
  bool begun_ = false;  // begin_backward() was called in this micro-step
  // With several ranks:
  std::optional<RowCountsOfRanks> counts_;
  Tensor outgoing_;       // values in ascending order of rows
  Tensor incoming_rows_;  // i32
  Tensor incoming_values_;
  dist::Work arrived_;
  // At the owner:
  RowSlots touched_;
  Tensor sums_;   // f32 [capacity of touched_, C], by slot
  Tensor slots_;  // i32 on the host: of the rows of one contribution
  SortedRows sorted_;
  Tensor block_numbers_;  // i64 on the host
  Tensor block_firsts_;   // i32 on the host
  // On a GPU: copies of the lists above.
  Tensor device_slots_;
  Tensor device_numbers_;
  Tensor device_firsts_;
  TouchedBlocks blocks_;
  RowCounts total_;
};

}  // namespace tessera::optim
