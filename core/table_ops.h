// row_products, an operation on two tables whose rows are looked up. The other lookups, embedding
// and embedding_bag, are in core/ops.h. A table has V rows of C channels. B rows of the left table
// are looked up, and K rows of the right table for each of the B rows.
#pragma once

#include "core/tensor.h"

namespace tessera::ops {

/// Rows of a table, selected by index. Each row may have a bias, one number.
struct Lookup {
  Tensor table;         // (V, C)
  Tensor indices = {};  // i32; undefined (left side only): all rows, in order
  Tensor bias = {};     // (V, 1), or undefined
};

struct RowProducts {
  Tensor products;  // (B, K), of the tables' dtype
  Tensor squares;   // f32 [], or undefined
};
/// Returns dot products of rows, as in a matrix factorization, without copying a row:
///   products[b, k] = left[b] . right[b, k] + the biases of both rows
///   left[b]        row left.indices[b] of the left table; indices (B)
///   right[b, k]    row right.indices[b, k] of the right table; indices (B, K)
/// Each product is summed in f32 and rounded once. If `squares`, also returns the penalty of a
/// factorization: the sum of the squares of all rows and biases that are looked up. A row that is
/// looked up n times counts n times. The squares of each row are summed in f32, and the rows' sums
/// are added in f64.
///
/// If no gradient is recorded, right.indices may be (1, K), shared by all b. A left side without
/// indices looks up all rows. It must have no bias, and its table must not be row-sparse
/// (core/autograd.h). Throws for an index outside [0, V) of its table. On CUDA, the host's next
/// synchronisation with the device throws instead, except for a row-sparse table.
RowProducts row_products(const Lookup& left, const Lookup& right, bool squares = false);

}  // namespace tessera::ops
