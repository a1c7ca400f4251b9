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

/// products (B, K), and squares f32 [], which may be undefined. Workspace, for squares alone: on
/// the CPU 4 bytes for each row of the larger table (4 V), and 8 for every 64 of them; on CUDA
/// 4 bytes * (B + B K), and what their sum takes.
TESSERA_KERNEL(row_products_forward, const Tensor& products, const Tensor& squares,
               const RowProductInputs& in)

/// Of the results; either may be undefined.
struct RowProductGradients {
  Tensor products;  // (B, K)
  Tensor squares;   // f32 []
};
/// A gradient to be written, or added to where `accumulate` says so; undefined where not wanted.
struct GradientTarget {
  Tensor gradient = {};
  bool accumulate = false;
};
enum class RowProductSide : uint8_t { left, right };
/// For each row v of the table of one side the fp32 sums, over the places (b, k) where it was
/// looked up, in order, of dproducts[b, k] times the other side's row (table) and of dproducts
/// (bias), and twice the row or bias itself times dsquares for each time it was looked up.
/// Workspace: on the CPU 4 bytes * (V + 1 + 2 B K); on CUDA 4 bytes * (V + 1 + B K) where indices
/// are sorted, B K more for 16-bit types, and B K more for the left ones where K > 1.
TESSERA_KERNEL(row_products_backward, const GradientTarget& table, const GradientTarget& bias,
               RowProductSide side, const RowProductGradients& gradients,
               const RowProductInputs& in)

}  // namespace tessera
