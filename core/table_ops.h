// Operations on tables whose rows are looked up, one line and a contract each, as core/ops.h has
// the others, embedding and embedding_bag among them. B rows, K indices for each, V rows of a
// table, C channels.
#pragma once

#include "core/tensor.h"

namespace tessera::ops {

/// Rows of a table, by index. Each may have a bias, a number of its own.
struct Lookup {
  Tensor table;         // (V, C)
  Tensor indices = {};  // i32; undefined: all rows, in order
  Tensor bias = {};     // (V, 1), or undefined
};

struct RowProducts {
  Tensor products;  // (B, K), of the tables' dtype
  Tensor squares;   // f32 [], or undefined
};
/// What a matrix factorization computes, and no row is copied for it:
/// products[b, k] = left[b] . right[b, k], plus the biases of both, where left[b] is the row of
/// left.indices[b] (B) and right[b, k] that of right.indices[b, k] (B, K). With `squares` also the
/// sum of the squares of all rows and biases that were looked up, each as often as it was: the
/// penalty of a factorization. All in fp32, rounded once. Right indices (1, K) are the same for all
/// b, and serve where no gradient is recorded. Left rows without indices have no bias. Throws for
/// an index outside [0, V).
RowProducts row_products(const Lookup& left, const Lookup& right, bool squares = false);

}  // namespace tessera::ops
