// The launchers of linear, one for both devices: what differs is inside a product (core/product.h),
// inside GELU, and in how the gradient of a bias is summed.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

namespace kernels {
/// y (R, out) = x (R, in) weight + bias. bias may be undefined. With an activation,
/// y = activation(pre) and pre (R, out) keeps the value before it, unless it is undefined.
void linear_forward(const Context& context, const Tensor& y, const Tensor& pre, const Tensor& x,
                    const Tensor& weight, const Tensor& bias, WeightLayout layout,
                    Activation activation);
/// Any of dx, dweight, dbias may be undefined; x may where dweight is, and the weight is not read
/// where dx is. With an activation `dy` belongs to its output.
void linear_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                     const Tensor& dbias, const Tensor& dy, const Tensor& pre, const Tensor& x,
                     const Tensor& weight, WeightLayout layout, Activation activation);
}  // namespace kernels

/// sums (C) = the sums of the columns of x (..., C), in an order that depends on the rows alone:
/// the gradient of a bias.
TESSERA_KERNEL(column_sums, const Tensor& sums, const Tensor& x)

/// R of x (..., C).
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i < x.rank() - 1; ++i) rows *= x.size(i);
  return rows;
}

namespace cuda {
/// What column_sums takes of the workspace.
int64_t column_sums_workspace(int64_t rows, int64_t channels);
}  // namespace cuda

}  // namespace tessera
