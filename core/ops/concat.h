// The launcher of concat and split.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Rows of `width` elements to copy from one tensor to another. In the destination, the first row
/// begins at element `to`, and rows are `to_stride` elements apart. In the source, the first row
/// begins at element `from`, and rows are `from_stride` elements apart.
struct RowCopy {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t to = 0;
  int64_t to_stride = 0;
  int64_t from = 0;
  int64_t from_stride = 0;
};

/// Copies rows of x into y, and leaves the elements of y between these rows untouched. x and y have
/// the same dtype, of 2 or 4 bytes.
TESSERA_KERNEL(copy_rows, const Tensor& y, const Tensor& x, const RowCopy& copy)

}  // namespace tessera
