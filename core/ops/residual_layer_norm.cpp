// residual_layer_norm: x, residual (..., C), weight (C), bias (C)
//   -> sum (..., C) = x + residual,  normalized (..., C) = layer_norm(sum)
// in one pass over memory. With 16-bit types the norm is computed from the rounded sum, as stored.
// x and residual have the same gradient. It is the gradient of the output `sum`, plus the gradient
// that the backward of layer_norm computes for layer_norm's input.
#include <array>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/layer_norm.h"
#include "core/ops/layer_norm_rows.h"
#include "core/ops/residual_layer_norm.h"
#include "core/trace.h"

namespace tessera::ops {

ResidualNorm residual_layer_norm(const Tensor& x, const Tensor& residual, const Tensor& weight,
                                 const Tensor& bias, float epsilon) {
  const int64_t rows = checked_norm_rows("residual_layer_norm", x, weight, bias);
  TESSERA_CHECK(residual.shape() == x.shape(),
                "residual_layer_norm: residual has shape {}, expected {}", residual.shape(),
                x.shape());
  TESSERA_CHECK(residual.dtype() == x.dtype(),
                "residual_layer_norm: residual has dtype {}, expected {}",
                dtype_name(residual.dtype()), dtype_name(x.dtype()));
  const trace::Scope scope("residual_layer_norm");
  const InUse in_use({&x, &residual, &weight, &bias});
  std::array<Tensor, 2> outputs = {Tensor::empty(x.shape(), x.dtype(), x.device()),
                                   Tensor::empty(x.shape(), x.dtype(), x.device())};
  const auto& [sum, normalized] = outputs;
  const Tensor mean = Tensor::empty({rows}, DType::f32, x.device());
  const Tensor rstd = Tensor::empty({rows}, DType::f32, x.device());
  kernels::residual_layer_norm_forward(current_context(x.device()), normalized, sum, mean, rstd, x,
                                       residual, weight, bias, epsilon);
  offer_recompute(outputs[1], sum, weight, bias, rows, epsilon);
  record("residual_layer_norm", outputs, {x, residual, weight, bias},
         [sum = saved(outputs[0]), weight = saved(weight), mean, rstd](
             std::span<const Tensor> dys, InputGradients& grads) {
           const InUse in_backward({&weight});
           const Tensor& dsum = dys[0];
           const Tensor& dnormalized = dys[1];
           const auto wanted = [&grads](int input) {
             return grads.wanted(input) ? grads.destination(input) : Tensor{};
           };
           Tensor dx = dsum;  // the gradient of both x and residual
           if (dnormalized.defined()) {
             dx = grads.wanted(0) || grads.wanted(1)
                      ? Tensor::empty(sum.shape(), sum.dtype(), sum.device())
                      : Tensor{};
             kernels::layer_norm_backward(current_context(sum.device()), dx, wanted(2), wanted(3),
                                          dnormalized, dsum, sum, mean, rstd, weight);
           }
           if (grads.wanted(0)) grads.pass(0, dx);
           if (grads.wanted(1)) grads.pass(1, dx);
         });
  return {outputs[0], outputs[1]};
}

}  // namespace tessera::ops

namespace tessera::cpu {

void residual_layer_norm_forward(const Context&, const Tensor& y, const Tensor& sum,
                                 const Tensor& mean, const Tensor& rstd, const Tensor& x,
                                 const Tensor& residual, const Tensor& weight, const Tensor& bias,
                                 float epsilon) {
  const int64_t channels = weight.elements();
  visit_float(x.dtype(), "residual_layer_norm", [&]<class T>() {
    parallel_ranges(mean.elements(), 5 * channels, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* left = x.data<T>() + r * channels;
        const T* right = residual.data<T>() + r * channels;
        T* row = sum.data<T>() + r * channels;
        float total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < channels; ++i) {
          row[i] = rounded<T>(float(left[i]) + float(right[i]));
          total += float(row[i]);
        }
        const RowStatistics statistics = row_statistics(total, row, channels, epsilon);
        normalize_row(y.data<T>() + r * channels, row, weight.data<T>(), bias.data<T>(), statistics,
                      channels);
        mean.data<float>()[r] = statistics.mean;
        rstd.data<float>()[r] = statistics.rstd;
      }
    });
  });
}

}  // namespace tessera::cpu
