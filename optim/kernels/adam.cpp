// adam_update: Adam and AdamW on flat tensors of n elements each. Parameters p and both moments, m
// and v, are f32, gradients have any floating-point dtype. For each element, as in PyTorch:
//   g = gradient * gradient_scale              (+ weight_decay * p if decay is not decoupled)
//   m = beta1 m + (1 - beta1) g
//   v = beta2 v + (1 - beta2) g^2
//   p = p (1 - learning_rate * weight_decay)   (if decay is decoupled)
//   p = p - learning_rate / bias_correction1 * m / (sqrt(v) / sqrt(bias_correction2) + epsilon)
// adam_update_rows applies these formulas to rows of a row-sparse table (rows.h). No autograd
// operation wraps these launchers. With f32 gradients adam_update moves 28 bytes per element and is
// bound by memory bandwidth.
#include <cmath>

#include "core/cpu/vector_math.h"
#include "optim/kernels/row_update.h"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.h"

namespace tessera::cpu {

namespace {

template <class T>
void adam_range(float* parameters, float* first_moment, float* second_moment, const T* gradients,
                const UpdateHyper& hyper, int64_t begin, int64_t end) {
  const float scale = hyper.gradient_scale;
  const float decay_into_gradient = hyper.decoupled_decay ? 0.0f : hyper.weight_decay;
  const float shrink =
      hyper.decoupled_decay ? 1.0f - hyper.learning_rate * hyper.weight_decay : 1.0f;
  const float beta1 = hyper.beta1;
  const float beta2 = hyper.beta2;
  const float one_minus_beta1 = 1.0f - beta1;
  const float one_minus_beta2 = 1.0f - beta2;
  const float step = hyper.learning_rate / hyper.bias_correction1;
  const float root_correction = 1.0f / std::sqrt(hyper.bias_correction2);
  const float epsilon = hyper.epsilon;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float p = parameters[i];
    const float g = multiply_add(decay_into_gradient, p, float(gradients[i]) * scale);
    const float m = multiply_add(beta1, first_moment[i], one_minus_beta1 * g);
    const float v = multiply_add(beta2, second_moment[i], one_minus_beta2 * g * g);
    const float denominator = multiply_add(std::sqrt(v), root_correction, epsilon);
    first_moment[i] = m;
    second_moment[i] = v;
    parameters[i] = multiply_add(p, shrink, -(step * m / denominator));
  }
}

}  // namespace

void adam_update(const Context&, const Tensor& parameters, const Tensor& first_moment,
                 const Tensor& second_moment, const Tensor& gradients,
                 std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
                 const StepScalars* scalars) {
  check_update("adam_update", parameters, {first_moment, second_moment, gradients});
  visit_float(gradients.dtype(), "adam_update", [&]<class T>() {
    float* p = parameters.data<float>();
    float* m = first_moment.data<float>();
    float* v = second_moment.data<float>();
    const T* g = gradients.data<T>();
    for_each_segment("adam_update", parameters, segments, groups, scalars,
                     [=](const UpdateHyper& hyper, int64_t begin, int64_t end) {
                       adam_range(p, m, v, g, hyper, begin, end);
                     });
  });
}

void adam_update_rows(const Context&, const RowUpdate& update, const UpdateHyper& hyper) {
  check_row_update("adam_update_rows", update, 2);
  const int64_t width = update.parameters.size(1);
  for_each_row(update, hyper,
               [&](int64_t row, const float* gradient, const UpdateHyper& scaled) {
                 const int64_t at = row * width;
                 adam_range(update.parameters.data<float>() + at,
                            update.state[0].data<float>() + at, update.state[1].data<float>() + at,
                            gradient, scaled, 0, width);
               });
}

}  // namespace tessera::cpu
