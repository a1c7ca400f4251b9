#include "dist/row_layout.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"

namespace tessera::dist {

int64_t row_multiple(int64_t width) { return block_elements / std::gcd(width, block_elements); }

RowLayout::RowLayout(int64_t rows, int64_t width, int64_t ranks, int64_t multiple)
    : rows_(rows), width_(width), ranks_(ranks) {
  constexpr int64_t most_rows = int64_t{1} << 31;
  TESSERA_CHECK(rows >= 1 && rows < most_rows && width >= 1 && width < most_rows && ranks >= 1,
                "row layout: a table [{}, {}] on {} ranks, expected sizes from 1 to 2^31 - 1", rows,
                width, ranks);
  TESSERA_CHECK(multiple >= 1 && multiple % row_multiple(width) == 0,
                "row layout: ranges of {} rows of {} elements, expected multiples of {} rows",
                multiple, width, row_multiple(width));
  const int64_t share = (rows + ranks - 1) / ranks;
  rows_per_rank_ = (share + multiple - 1) / multiple * multiple;
}

Range RowLayout::owned(int64_t rank) const {
  TESSERA_CHECK(0 <= rank && rank < ranks_,
                "row layout: rank {}, expected at least 0 and less than {}", rank, ranks_);
  const int64_t begin = std::min(rows_, rank * rows_per_rank_);
  return {begin, std::min(rows_, begin + rows_per_rank_)};
}

}  // namespace tessera::dist
