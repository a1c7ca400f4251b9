// The kernel launchers of linear, written once for both devices. The devices differ inside a
// product (core/product.h), inside GELU, and in how the gradient of a bias is summed.
#pragma once

#include <cstdint>

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

namespace kernels {
/// y (R, out) = activation(x (R, in) weight + bias). bias may be undefined. If there is an
/// activation and pre (R, out) is defined, the value before the activation is written to pre.
void linear_forward(const Context& context, const Tensor& y, const Tensor& pre, const Tensor& x,
                    const Tensor& weight, const Tensor& bias, WeightLayout layout,
                    Activation activation);
/// Computes dweight and dbias from g (R, out), the gradient of the value before the activation.
/// dweight or dbias may be undefined. x may be undefined if dweight is undefined.
void linear_weight_gradient(const Context& context, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& g, const Tensor& x, WeightLayout layout);
/// Computes dx (R, in) from g (R, out), the gradient of the value before the activation.
void linear_input_gradient(const Context& context, const Tensor& dx, const Tensor& g,
                           const Tensor& weight, WeightLayout layout);
}  // namespace kernels

/// sums (C) = the sum of each column of x (..., C). If x is the gradient of y = z + bias, with a
/// bias (C), `sums` is the gradient of the bias. On each device, the order of addition depends only
/// on the number of rows.
TESSERA_KERNEL(column_sums, const Tensor& sums, const Tensor& x)

/// Returns R, the number of rows of x (..., C).
inline int64_t rows_of(const Tensor& x) {
  int64_t rows = 1;
  for (int i = 0; i < x.rank() - 1; ++i) rows *= x.size(i);
  return rows;
}

namespace cuda {
/// Returns the number of bytes of workspace that column_sums needs.
int64_t column_sums_workspace(int64_t rows, int64_t channels);
}  // namespace cuda

}  // namespace tessera
