// The launcher of concat and split.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Rows of the same elements in two tensors: `width` elements each, which begin at `to` and `from`
/// in the first row and are `to_stride` and `from_stride` elements apart.
struct RowCopy {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t to = 0;
  int64_t to_stride = 0;
  int64_t from = 0;
  int64_t from_stride = 0;
};

/// Copies rows of x into y; what lies between them in y stays. Both have one dtype, of 2 or 4
/// bytes.
TESSERA_KERNEL(copy_rows, const Tensor& y, const Tensor& x, const RowCopy& copy)

}  // namespace tessera
