// The kernel launchers of row_products. Shapes: there are B result rows with K products each. A
// table has V rows of C channels; the left and the right table may differ in V.
#pragma once

#include "core/dispatch.h"
#include "core/table_ops.h"

namespace tessera {

struct RowProductInputs {
  ops::Lookup left;   // indices (B); if undefined, result row b looks up row b of the table
  ops::Lookup right;  // indices (B, K), or (1, K), which all result rows share

  int64_t rows() const { return (left.indices.defined() ? left.indices : left.table).size(0); }
  int64_t per_row() const { return right.indices.size(1); }
  int64_t channels() const { return left.table.size(1); }
  bool shared() const { return right.indices.size(0) != rows(); }
};

/// Computes products (B, K), and squares f32 []: the sum of the squares of all looked-up rows and
/// biases, each added once per lookup. `squares` may be undefined. Workspace, only if `squares` is
/// defined:
///   CPU    at most 4 V + 8 ceil(V / 64) bytes, with V of the larger table
///   CUDA   4 bytes per lookup, plus the workspace that kernels::sum needs for a tensor with one
///          element per lookup. There are B + B K lookups, or B + K if right indices are shared.
TESSERA_KERNEL(row_products_forward, const Tensor& products, const Tensor& squares,
               const RowProductInputs& in)

/// The gradients of the results. Either may be undefined.
struct RowProductGradients {
  Tensor products;  // (B, K)
  Tensor squares;   // f32 []
};
/// A gradient to write, or to add to if `accumulate`. An unwanted gradient is undefined.
struct GradientTarget {
  Tensor gradient = {};
  bool accumulate = false;
};
enum class RowProductSide : uint8_t { left, right };
/// Computes the gradients of one side's table and bias. For each row v:
///   dtable[v] = sum of dproducts[b, k] * (the other side's row at (b, k)) + 2 n dsquares table[v]
///   dbias[v]  = sum of dproducts[b, k]                                    + 2 n dsquares bias[v]
/// The sums are f32, over all places (b, k) that use row v. The order of addition is fixed:
/// ascending places, except for dbias on CUDA, where each lane of a warp sums every 32nd place.
/// n is the number of lookups of v: a left row is looked up once per b, not K times.
/// Workspace:
///   CPU    4 bytes * (V + 1 + 2 B K)
///   CUDA   none for a left side without indices, which needs no sorting. Otherwise the sum of
///            4 bytes * (V + 1 + B K),
///            up to 4 B K bytes for 16-bit types,
///            4 B K bytes if there are left indices and K > 1
TESSERA_KERNEL(row_products_backward, const GradientTarget& table, const GradientTarget& bias,
               RowProductSide side, const RowProductGradients& gradients,
               const RowProductInputs& in)

}  // namespace tessera
