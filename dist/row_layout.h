// Which rank owns which rows of a row-sparse table: arithmetic alone, as in dist/shard_layout.h.
//
//   rows    | rank 0 | rank 1 | ... | rank N-1, the last ones shorter or empty |
//
// A range of rows ends on a block of 256 elements (or at the end of the table), so that a sum that
// is computed block by block never needs elements of two ranks.
#pragma once

#include <cstdint>
#include <string>

#include "dist/shard_layout.h"

namespace tessera::dist {

class RowLayout {
 public:
  /// A table of `rows` rows of `width` elements. Ranges end on multiples of `multiple` rows, which
  /// must be a multiple of row_multiple(width). Throws unless all numbers are positive, and if the
  /// table has 2^31 rows or more.
  RowLayout(int64_t rows, int64_t width, int64_t ranks, int64_t multiple);

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  int64_t ranks() const { return ranks_; }
  /// The rows that `rank` owns; may be empty.
  Range owned(int64_t rank) const;
  int64_t owner(int64_t row) const { return row / rows_per_rank_; }
  /// The most rows that a rank owns: the number that rank 0 does.
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
