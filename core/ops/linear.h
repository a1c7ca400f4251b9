// Sizes of a linear layer, for the launchers of both devices.
#pragma once

#include "core/kernels.h"

namespace tessera {

struct LinearSizes {
  int64_t in, out, rows;
  int64_t row_stride, column_stride;  // of W as (in, out)
};

/// y (..., out), weight as `layout` says.
inline LinearSizes linear_sizes(const Tensor& y, const Tensor& weight, WeightLayout layout) {
  const bool in_out = layout == WeightLayout::in_out;
  const int64_t in = weight.size(in_out ? 0 : 1);
  const int64_t out = weight.size(in_out ? 1 : 0);
  int64_t rows = 1;
  for (int i = 0; i < y.rank() - 1; ++i) rows *= y.size(i);
  return {in, out, rows, in_out ? out : 1, in_out ? 1 : in};
}

namespace cuda {
/// What linear_backward takes of the workspace for the gradient of a bias.
int64_t bias_gradient_workspace(int64_t rows, int64_t channels);
}  // namespace cuda

}  // namespace tessera
