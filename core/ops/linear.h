// The launchers of linear, and the sizes that both devices take.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

/// y (R, out) = x (R, in) weight + bias. bias may be undefined. With an activation,
/// y = activation(pre) and pre (R, out) keeps the value before it, unless it is undefined.
TESSERA_KERNEL(linear_forward, const Tensor& y, const Tensor& pre, const Tensor& x,
               const Tensor& weight, const Tensor& bias, WeightLayout layout, Activation activation)
/// Any of dx, dweight, dbias may be undefined; x may where dweight is, and the weight is not read
/// where dx is. With an activation `dy` belongs to its output.
TESSERA_KERNEL(linear_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& pre, const Tensor& x, const Tensor& weight,
               WeightLayout layout, Activation activation)

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
