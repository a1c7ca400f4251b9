// Rows that each rank sends to their owners, or asks of them. Every rank first tells every other
// one how many rows it has for it, from host to host; then the rows' numbers travel, and their
// values in either direction. Numbers count as Traffic::rows.
#pragma once

#include <vector>

#include "dist/host_buffer.h"
#include "optim/kernels/rows.h"
#include "optim/tables/row_counts.h"
#include "optim/tables/sorted_rows.h"
#include "optim/tables/table_info.h"

namespace tessera::optim {

/// Counts of rows by asking rank and owner, which all ranks learn.
class RowCountsOfRanks {
 public:
  RowCountsOfRanks(const TableInfo& info, dist::Communicator& communicator);

  /// Starts to gather the counts of all ranks; those of this rank are of `rows`. Collective.
  void gather(const SortedRows& rows, dist::Traffic purpose = dist::Traffic::rows);
  /// Waits for the counts. Afterwards:
  void wait();
  /// Rows of this rank by owner, and rows that this rank owns by the rank that has them.
  const std::vector<int64_t>& by_owner() const { return by_owner_; }
  const std::vector<int64_t>& by_source() const { return by_source_; }
  int64_t incoming() const;  // the sum of by_source()
  /// Rows in `counts` that are on another rank.
  int64_t of_others(const std::vector<int64_t>& counts) const;

 private:
  const TableInfo& info_;
  dist::Communicator& communicator_;
  dist::HostBuffer counts_;  // i64 [ranks * ranks]
  dist::Work work_;
  std::vector<int64_t> by_owner_;
  std::vector<int64_t> by_source_;
};

/// The counts of an exchange of rows of `width` elements.
dist::ExchangeCounts exchange_counts(const std::vector<int64_t>& send,
                                     const std::vector<int64_t>& receive, int64_t width);

/// Brings rows of a table that is sharded by rows from their owners. The calls are collective, and
/// every fetch makes all three in order.
class RowFetch {
 public:
  RowFetch(const TableInfo& info, dist::Communicator& communicator);

  /// A fetch counts as traffic of a step, or if it is of an evaluation as Traffic::other.
  enum class Purpose : uint8_t { step, evaluation };
  /// Says which rows this rank wants, at most n: rows[i] has slot first_slot + i.
  void request(std::span<const int32_t> rows, int64_t first_slot, Purpose purpose = Purpose::step);
  /// Exchanges the numbers of rows, and starts to send values: `own` are the rows that this rank
  /// owns. Waits for the counts, not for the values.
  void start(const Tensor& own);
  /// Adds the rows of this fetch to `total`. Called after start().
  void count(RowCounts& total) const;
  /// Waits for the values, and writes them to the rows of `to` that are their slots.
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
  Tensor asked_rows_;    // i32: the rows that others want of this rank
  Tensor asked_values_;  // their values
  Tensor values_;        // the values that this rank wants, in ascending order of rows
  dist::Work arrived_;
};

/// Gathers the rows that a step has changed, with values, from all ranks. Its buffers are allocated
/// at the first gather.
class RowGather {
 public:
  RowGather(const TableInfo& info, dist::Communicator& communicator)
      : info_(info), communicator_(communicator) {}

  struct Gathered {
    Tensor rows;        // i32 [rows of all ranks], ascending
    Tensor values;      // [rows of all ranks, C]
    int64_t begin = 0;  // this rank's own rows are [begin, end) of them
    int64_t end = 0;
    dist::Work arrived;
  };
  /// `changed`: i32, this rank's rows, ascending; `from`: their values. Rank r has counts[r] rows,
  /// and all ranks together at most `most`. An earlier gather must have arrived. Collective.
  Gathered gather(const Tensor& changed, const RowList& from, const std::vector<int64_t>& counts,
                  int64_t most, dist::Traffic purpose);

 private:
  const TableInfo& info_;
  dist::Communicator& communicator_;
  Tensor rows_;
  Tensor values_;
};

}  // namespace tessera::optim
