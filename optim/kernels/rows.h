// Launchers that work on rows of row-sparse tables. C is the width of a row. Row indices are i32,
// on the device of the matrices. No autograd operation wraps these launchers.
#pragma once

#include <cstdint>
#include <span>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"
#include "optim/kernels/update.h"

namespace tessera {

/// A list of rows of a matrix (R, C). Row i of the list is row `index[i] - first` of the matrix. If
/// the matrix holds only a range of a table, `first` is the table row that is row 0 of the matrix.
struct RowList {
  Tensor matrix;
  Tensor index = {};  // i32 (m); undefined: index[i] is i
  int64_t first = 0;

  int64_t width() const { return matrix.size(1); }
};

/// to[i] = from[i] for i < count, rounded to the dtype of `to`. The rows of `to` are distinct.
TESSERA_KERNEL(copy_rows, const RowList& to, const RowList& from, int64_t count)

/// sums[i] = (sums.index[i] < fresh ? sums[i] : +0.0) + values[i] for i < count, in f32. In the
/// matrix of `sums`, row `fresh` and the rows after it are uninitialised. `sums.first` must be 0,
/// and the rows of `sums` distinct.
TESSERA_KERNEL(fold_rows, const RowList& sums, int64_t fresh, const RowList& values, int64_t count)

/// The touched rows of a table, in ascending order, and the blocks of 256 table elements that
/// contain elements of these rows. A row is touched if this rank owns the row and a micro-batch of
/// the step has sent a gradient for the row. The gradient may be zero.
struct TouchedBlocks {
  Tensor sums;    // f32 (>= m, C): gradient sums
  Tensor slots;   // i32 (m): for each touched row, its row in `sums`
  Tensor rows;    // i32 (m): indices of the touched rows, ascending
  Tensor blocks;  // i64 (b): indices of the blocks, ascending
  Tensor first;   // i32 (b): for each block, the index in `rows` of its first touched row
  int64_t row_count = 0;
  int64_t block_count = 0;
};
/// squares[j] = the fp64 sum of squares of block number blocks[j]. The bits are those of
/// block_square_sums on the whole gradient, in which all untouched rows are zero.
TESSERA_KERNEL(touched_square_sums, std::span<double> squares, const TouchedBlocks& touched)

/// An update of rows of a table. Row i of the update is row `rows[i] - first` of `parameters` and
/// of each state tensor. The gradient of row i is row slots[i] of `gradients`, or zero if slots[i]
/// is -1.
struct RowUpdate {
  Tensor parameters;              // f32 (R, C)
  std::span<const Tensor> state;  // f32 (R, C) each, or (R) for a rule with one value per row
  Tensor gradients;               // f32 (>= 1, C)
  Tensor rows;                    // i32 (m), distinct
  Tensor slots = {};              // i32 (m); undefined: slots[i] is i
  int64_t first = 0;
  int64_t count = 0;
  const StepScalars* scalars = nullptr;  // as in update.h
};

/// The next three launchers update rows with the formulas of adam_update, sgd_update and
/// adagrad_update. Each element gets the same bits as from the launchers for flat tensors.
TESSERA_KERNEL(adam_update_rows, const RowUpdate& update, const UpdateHyper& hyper)
TESSERA_KERNEL(sgd_update_rows, const RowUpdate& update, const UpdateHyper& hyper)
TESSERA_KERNEL(adagrad_update_rows, const RowUpdate& update, const UpdateHyper& hyper)
/// Adagrad with one value v per row (Gupta et al., "Training recommender systems at scale", 2020,
/// and FBGEMM's exact_rowwise_adagrad). For a row p:
///   g = gradient * gradient_scale + weight_decay * p
///   v += mean of g^2;  p -= learning_rate * g / (sqrt(v) + epsilon)
TESSERA_KERNEL(rowwise_adagrad_update_rows, const RowUpdate& update, const UpdateHyper& hyper)

}  // namespace tessera
