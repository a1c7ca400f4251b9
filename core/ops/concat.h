// The kernel launcher of concat and split.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Rows of `width` elements to copy from one tensor to another. Row i begins at element
/// `to + i * to_stride` of the destination, and at element `from + i * from_stride` of the source.
struct RowCopy {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t to = 0;
  int64_t to_stride = 0;
  int64_t from = 0;
  int64_t from_stride = 0;
};

/// Copies rows of x into y, and leaves all other elements of y untouched. x and y have the same
/// dtype, of any size.
TESSERA_KERNEL(copy_rows, const Tensor& y, const Tensor& x, const RowCopy& copy)

}  // namespace tessera
