// Exchanges rows of a row-sparse table between the ranks that use them and the ranks that own them:
//
//   TableGradients   each rank sends its gradient rows to the owners (table_gradients.h)
//   RowFetch         each rank requests rows, and the owners send the values
//   RowGather        the owners send rows to all ranks
//
// In each exchange, the ranks first exchange counts of rows in host memory, then row indices, and
// last gradients or values. RowGather gets the counts from its caller. The bytes of counts and of
// row indices are added to Traffic::rows, except in an evaluation (RowFetch::Purpose).
#pragma once

#include <vector>

#include "dist/host_buffer.h"
#include "optim/kernels/rows.h"
#include "optim/tables/row_counts.h"
#include "optim/tables/sorted_rows.h"
#include "optim/tables/table_info.h"

namespace tessera::optim {

/// The number of rows that each rank sends to or requests from each owner. Every rank gets the
/// counts of all ranks.
class RowCountsOfRanks {
 public:
  RowCountsOfRanks(const TableInfo& info, dist::Communicator& communicator);

  /// Counts `rows` by owner, and starts to gather the counts of all ranks. Collective.
  void gather(const SortedRows& rows, dist::Traffic purpose = dist::Traffic::rows);
  /// Waits for the counts. The functions below may be called afterwards.
  void wait();
  /// by_owner()[r]: the number of rows owned by rank r that this rank sends or requests.
  /// by_source()[r]: the number of rows owned by this rank that rank r sends or requests.
  const std::vector<int64_t>& by_owner() const { return by_owner_; }
  const std::vector<int64_t>& by_source() const { return by_source_; }
  int64_t incoming() const;  // the sum of by_source()
  /// The sum of `counts` without this rank's own entry.
  int64_t of_others(const std::vector<int64_t>& counts) const;

 private:
  const TableInfo& info_;
  dist::Communicator& communicator_;
  dist::HostBuffer counts_;  // i64 [ranks * ranks]
  dist::Work work_;
  std::vector<int64_t> by_owner_;
  std::vector<int64_t> by_source_;
};

/// Returns the counts, in elements, of an exchange of rows of `width` elements. This rank sends
/// send[r] rows to rank r, and receives receive[r] rows from rank r.
dist::ExchangeCounts exchange_counts(const std::vector<int64_t>& send,
                                     const std::vector<int64_t>& receive, int64_t width);

/// Fetches rows of a sharded table from their owners. Every fetch calls request(), start() and
/// finish() in this order; these calls are collective.
class RowFetch {
 public:
  RowFetch(const TableInfo& info, dist::Communicator& communicator);

  /// A fetch for a step counts as Traffic::rows and Traffic::parameters. A fetch for an evaluation
  /// counts as Traffic::other.
  enum class Purpose : uint8_t { step, evaluation };
  /// Sets the rows that this rank needs, at most info.distinct(), and starts to gather the counts
  /// of all ranks. rows[i] has slot first_slot + i: finish() writes the values of rows[i] to row
  /// first_slot + i of `to`.
  void request(std::span<const int32_t> rows, int64_t first_slot, Purpose purpose = Purpose::step);
  /// Sends the row indices to the owners, and starts the exchange of values. Waits for the counts,
  /// not for the values. `own`: the values of all rows that this rank owns.
  void start(const Tensor& own);
  /// Adds to total.asked the number of rows that this rank requests from other ranks in this fetch.
  /// Adds to total.served the number of rows that this rank sends to other ranks. Called after
  /// start().
  void count(RowCounts& total) const;
  /// Waits for the values. Writes the values of the row with slot s (see request) to row s of `to`.
  void finish(const Tensor& to);

 private:
  dist::Traffic traffic(dist::Traffic of_step) const {
    return purpose_ == Purpose::step ? of_step : dist::Traffic::other;
  }

  const TableInfo& info_;
  dist::Communicator& communicator_;
  Purpose purpose_ = Purpose::step;
  RowCountsOfRanks counts_;
  SortedRows wanted_;
  Tensor asked_rows_;    // i32: the rows that all ranks, this one included, request from this rank
  Tensor asked_values_;  // the values of the rows in asked_rows_
  Tensor values_;        // the values that this rank requested, in ascending order of rows
  dist::Work arrived_;
};

/// Sends the touched rows of a step to every rank: the row indices, and for each row its gradient
/// sum or its updated values. The caller calls reserve() when a micro-step begins, so that the
/// memory does not depend on whether the step updates anything.
class RowGather {
 public:
  /// `dtype`: the dtype of the gradient sums or values that are sent.
  RowGather(const TableInfo& info, dist::Communicator& communicator, DType dtype)
      : info_(info), communicator_(communicator), dtype_(dtype) {}

  /// The number of rows for which there are buffers.
  int64_t capacity() const { return rows_.defined() ? rows_.size(0) : 0; }
  /// Allocates buffers for `most` rows, the most that all ranks together send, unless the buffers
  /// are large enough already. The previous gather must be complete.
  void reserve(int64_t most);

  struct Gathered {
    Tensor rows;        // i32 [rows of all ranks], ascending
    Tensor values;      // [rows of all ranks, elements per row]: gradient sums or values
    int64_t begin = 0;  // this rank's own rows are rows[begin, end)
    int64_t end = 0;
    dist::Work arrived;
  };
  /// `changed`: i32, the rows that this rank sends, ascending; `from`: their gradient sums or
  /// values. Rank r sends counts[r] rows, and all ranks together send at most capacity(). The
  /// previous gather must be complete. Collective.
  Gathered gather(const Tensor& changed, const RowList& from, const std::vector<int64_t>& counts,
                  dist::Traffic purpose);

 private:
  const TableInfo& info_;
  dist::Communicator& communicator_;
  DType dtype_;
  Tensor rows_;
  Tensor values_;
};

}  // namespace tessera::optim
