// Operations on tables whose rows are looked up, one line and a contract each, as core/ops.h has
// the others, embedding and embedding_bag among them. B rows, K indices for each, V rows of the
// table, C channels.
#pragma once

#include "core/tensor.h"

namespace tessera::ops {

struct RowProducts {
  Tensor products;  // (B, K), of x's dtype
  Tensor squares;   // f32 (B, K), or (1, K) where indices are; undefined unless asked for
};
/// x (B, C), indices i32 (B, K), table (V, C) -> products[b, k] = x[b] . table[indices[b, k]], and
/// with `squares` the sum of the squares of that row, both in f32. No row is copied. Indices (1, K)
/// are the same for all b, and serve where no gradient is recorded. Throws for one outside [0, V).
RowProducts row_products(const Tensor& x, const Tensor& indices, const Tensor& table,
                         bool squares = false);

}  // namespace tessera::ops
