// The kernel launchers of gather, index_select and scatter_add.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

enum class Picking { index_select, gather, scatter_add };

/// Returns the name of the operation, for error messages.
inline const char* name_of(Picking picking) {
  switch (picking) {
    case Picking::index_select:
      return "index_select";
    case Picking::gather:
      return "gather";
    case Picking::scatter_add:
      return "scatter_add";
  }
  return "";
}

/// The sizes of a tensor x that is treated as (outer, size, inner), with the indexed dimension in
/// the middle. For each o and i, the elements x[o, :, i] form a line. The picked or added elements
/// form a tensor (outer, count, inner).
struct Lines {
  Picking picking;  // the operation, for error messages
  int64_t outer = 1;
  int64_t size = 0;
  int64_t inner = 1;
  int64_t count = 0;
  bool shared = false;  // true: index has shape (count); false: (outer, count, inner)
};

/// y[o, j, i] = x[o, index[o, j, i], i], or x[o, index[j], i] if lines.shared.
TESSERA_KERNEL(gather_lines, const Tensor& y, const Tensor& x, const Tensor& index,
               const Lines& lines)
/// sum[o, to, i] += source[o, j, i] in order of j, where `to` is index[o, j, i], or index[j] if
/// lines.shared. sum is f32.
TESSERA_KERNEL(scatter_lines, const Tensor& sum, const Tensor& source, const Tensor& index,
               const Lines& lines)

}  // namespace tessera
