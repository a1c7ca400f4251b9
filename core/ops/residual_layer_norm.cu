// residual_layer_norm on CUDA: x + residual is rounded, written to `sum` and normalized. A row that
// stays in registers is not read again (layer_norm.cuh). The backward is layer_norm_backward.
#include "core/ops/layer_norm.cuh"
#include "core/ops/residual_layer_norm.h"

namespace tessera::cuda {

/// Needs no workspace.
void residual_layer_norm_forward(const Context& context, const Tensor& y, const Tensor& sum,
                                 const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                 const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                 float epsilon) {
  visit_float(x.dtype(), "residual_layer_norm", [&]<class T>() {
    launch_norm_forward<true>(
        context, "residual_layer_norm",
        NormForward<T>{.y = y.data<T>(),
                       .sum = sum.data<T>(),
                       .mean = mean.data<float>(),
                       .rstd = rstd.data<float>(),
                       .x = x.data<T>(),
                       .residual = residual.data<T>(),
                       .weight = weight.data<T>(),
                       .bias = bias.data<T>(),
                       .rows = mean.elements(),
                       .channels = weight.elements(),
                       .epsilon = epsilon});
  });
}

}  // namespace tessera::cuda
