// The shape of a row-sparse table, the rows that each rank owns, and the limits that decide the
// sizes of the table's buffers. All classes that make up a Table read this struct.
//
//   V  rows                  n  maximum number of distinct rows that a micro-batch may look up
//   C  elements per row      O  rows that this rank owns
#pragma once

#include <algorithm>
#include <vector>

#include "dist/communicator.h"
#include "dist/row_layout.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

struct TableInfo {
  PlacedParameter placed;
  dist::RowLayout layout;
  int rank = 0;

  const std::string& name() const { return placed.named.name; }
  DType dtype() const { return placed.named.parameter.dtype(); }
  bool trainable() const { return placed.named.parameter.trainable(); }
  int64_t distinct() const { return placed.named.parameter.distinct_rows(); }
  int64_t rows() const { return layout.rows(); }
  int64_t width() const { return layout.width(); }
  int64_t ranks() const { return layout.ranks(); }
  dist::Range own() const { return layout.owned(rank); }
  dist::Call call(dist::Traffic purpose) const { return {purpose, -1, placed.registration}; }

  /// The most rows owned by this rank that one micro-batch may look up: min(n, O).
  int64_t most_asked() const { return std::min(distinct(), own().size()); }
  /// The most rows that a step of `micro_batches` micro-batches may touch: among the rows that this
  /// rank owns, and among all rows.
  int64_t most_touched(int64_t micro_batches) const { return limit(own().size(), micro_batches); }
  int64_t most_touched_of_all(int64_t micro_batches) const { return limit(rows(), micro_batches); }
  /// An upper bound on the number of blocks of 256 elements over which one row extends.
  int64_t blocks_per_row() const;
  /// For each rank, the number of elements in the rows that it owns, if a row has `columns`
  /// elements.
  std::vector<int64_t> owned_elements(int64_t columns) const;

 private:
  int64_t limit(int64_t of, int64_t micro_batches) const {
    // The condition uses a division, because micro_batches * distinct() may overflow an int64_t.
    return micro_batches >= of / distinct() + 1 ? of : std::min(of, micro_batches * distinct());
  }
};

inline int64_t TableInfo::blocks_per_row() const {
  constexpr int64_t block = dist::block_elements;
  if (width() % block == 0) return width() / block;
  if (block % width() == 0) return 1;
  return (width() + block - 2) / block + 1;
}

inline std::vector<int64_t> TableInfo::owned_elements(int64_t columns) const {
  std::vector<int64_t> counts;
  for (int64_t r = 0; r < ranks(); ++r) counts.push_back(layout.owned(r).size() * columns);
  return counts;
}

/// Converts counts of rows to counts of elements. A row has `columns` elements.
std::vector<int64_t> in_elements(std::vector<int64_t> rows, int64_t columns);

/// Copies a list of rows to `device`. The memory is counted as workspace.
Tensor row_list(const std::vector<int32_t>& rows, Device device);

/// Makes a list in host memory readable for kernels. On a GPU, copies the list to `buffer` and
/// returns the copy. On the CPU, `buffer` is undefined and the list itself is returned.
Tensor on_device(const Tensor& list, const Tensor& buffer);

/// Allocates uninitialised rows from the communicator, [rows, width].
Tensor row_buffer(dist::Communicator& communicator, int64_t rows, int64_t width, DType dtype,
                  Category category);

}  // namespace tessera::optim
