// The launchers of row_products. B rows, K indices for each, V rows of a table, C channels.
#pragma once

#include "core/dispatch.h"
#include "core/table_ops.h"

namespace tessera {

struct RowProductInputs {
  ops::Lookup left;   // indices (B), or undefined: row b is the b-th of the table
  ops::Lookup right;  // indices (B, K), or (1, K)

  int64_t rows() const { return (left.indices.defined() ? left.indices : left.table).size(0); }
  int64_t per_row() const { return right.indices.size(1); }
  int64_t channels() const { return left.table.size(1); }
  bool shared() const { return right.indices.size(0) != rows(); }
};

/// Computes products (B, K), and squares f32 [], which may be undefined. Workspace is taken only
/// for squares: on the CPU 4 bytes for each row of the larger table (4 V), and 8 bytes for every 64
/// rows of it; on CUDA 4 bytes * (B + B K), and the workspace of `sum` over these.
TESSERA_KERNEL(row_products_forward, const Tensor& products, const Tensor& squares,
               const RowProductInputs& in)

/// The gradients of the results. Either may be undefined.
struct RowProductGradients {
  Tensor products;  // (B, K)
  Tensor squares;   // f32 []
};
/// A gradient to write, or to add to if `accumulate`. Undefined if it is not wanted.
struct GradientTarget {
  Tensor gradient = {};
  bool accumulate = false;
};
enum class RowProductSide : uint8_t { left, right };
/// Computes the gradients of one side's table and bias. For each row v of the table it is the fp32
/// sum, over the places (b, k) where v was looked up, in order, of dproducts[b, k] times the other
/// side's row; for the bias it is the sum of dproducts[b, k]. Added to it is 2 * dsquares times the
/// row or bias itself, for each time that v was looked up.
/// Workspace: on the CPU 4 bytes * (V + 1 + 2 B K). On CUDA 4 bytes * (V + 1 + B K) if indices are
/// sorted, another 4 B K for 16-bit types, and another 4 B K for left indices where K > 1.
TESSERA_KERNEL(row_products_backward, const GradientTarget& table, const GradientTarget& bias,
               RowProductSide side, const RowProductGradients& gradients,
               const RowProductInputs& in)

}  // namespace tessera
