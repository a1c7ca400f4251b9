// Computes which rank owns which rows of a row-sparse table: a parameter of which a micro-batch
// uses only some rows, such as an embedding. (dist/shard_layout.h is for all other parameters.)
// Each rank owns a range of rows. The ranges of the last ranks may be shorter or empty.
//
//   rows    | rank 0 | rank 1 | ... | rank N-1 |
//
// Each range of rows ends where a block of 256 elements ends, or where the table ends. So the
// gradient norm's sum of squares over a block never needs elements of two ranks.
#pragma once

#include <cstdint>
#include <string>

#include "dist/shard_layout.h"

namespace tessera::dist {

class RowLayout {
 public:
  /// A table of `rows` rows of `width` elements. Each range ends after a multiple of
  /// `multiple` rows or at the table's end. Throws if an argument is not positive, if `rows` or
  /// `width` is 2^31 or more, or if `multiple` is not divisible by row_multiple(width).
  RowLayout(int64_t rows, int64_t width, int64_t ranks, int64_t multiple);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t ranks() const { return ranks_; }
  /// The rows that `rank` owns; may be empty.
  Range owned(int64_t rank) const;
  int64_t owner(int64_t row) const { return row / rows_per_rank_; }
  /// The number of rows that rank 0 owns; no rank owns more.
  int64_t largest() const { return owned(0).size(); }

 private:
  int64_t rows_;
  int64_t width_;
  int64_t ranks_;
  int64_t rows_per_rank_;
};

/// The least number of rows that fill whole blocks: lcm(width, 256) / width.
int64_t row_multiple(int64_t width);

}  // namespace tessera::dist
