// Operations on tables whose rows are looked up, each with a short contract. core/ops.h has the
// other operations, embedding and embedding_bag among them. B rows of the left table, K rows of the
// right table for each of them, V rows in a table, C channels.
#pragma once

#include "core/tensor.h"

namespace tessera::ops {

/// Rows of a table, selected by index. Each row may have a bias, one number.
struct Lookup {
  Tensor table;         // (V, C)
  Tensor indices = {};  // i32; undefined: all rows, in order
  Tensor bias = {};     // (V, 1), or undefined
};

struct RowProducts {
  Tensor products;  // (B, K), of the tables' dtype
  Tensor squares;   // f32 [], or undefined
};
/// Dot products of rows, as in a matrix factorization, without copying a row: products[b, k] =
/// left[b] . right[b, k], plus the biases of both rows. left[b] is row left.indices[b] of the left
/// table, with indices (B); right[b, k] is row right.indices[b, k] of the right table, with indices
/// (B, K). With `squares` it also returns the sum of the squares of all looked-up rows and biases,
/// each counted as often as it was looked up: the penalty of a factorization. All sums are fp32,
/// rounded once. Right indices (1, K) are shared by all b, and are allowed only if no gradient is
/// recorded. A left side without indices has no bias. Throws for an index outside [0, V).
RowProducts row_products(const Lookup& left, const Lookup& right, bool squares = false);

}  // namespace tessera::ops
