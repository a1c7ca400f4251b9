// The launchers of row_products. B rows, K indices for each, V rows of the table, C channels.
#pragma once

#include "core/dispatch.h"

namespace tessera {

struct RowProductInputs {
  Tensor x;        // (B, C)
  Tensor indices;  // i32 (B, K), or (1, K)
  Tensor table;    // (V, C)

  int64_t per_row() const { return indices.size(1); }
  bool shared() const { return indices.size(0) == 1; }
};

/// products (B, K), and squares f32 of the indices' shape, which may be undefined.
TESSERA_KERNEL(row_products_forward, const Tensor& products, const Tensor& squares,
               const RowProductInputs& in)
/// dx (B, C) = the fp32 sum over k, in order, of dproducts[b, k] table[indices[b, k]].
TESSERA_KERNEL(row_products_dx, const Tensor& dx, const Tensor& dproducts,
               const RowProductInputs& in)

/// Of the results; either may be undefined.
struct RowProductGradients {
  Tensor products;  // (B, K)
  Tensor squares;   // f32 (B, K)
};
/// dtable (V, C) = for each row v the fp32 sum, over the places of v in indices, in order, of
/// dproducts[b, k] x[b], and 2 table[v] times the sum of dsquares there; added to dtable if
/// accumulate. Workspace: 4 bytes * (V + 1 + B K), and on CUDA for 16-bit types 4 B K more.
TESSERA_KERNEL(row_products_dtable, const Tensor& dtable, const RowProductGradients& gradients,
               const RowProductInputs& in, bool accumulate)

}  // namespace tessera
