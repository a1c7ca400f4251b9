// sgd_update: SGD with momentum on flat tensors of n elements each, as in torch.optim.SGD without
// dampening. Parameters p and the momentum buffer b are f32, gradients have any floating-point
// dtype. The factor `momentum` is UpdateHyper::beta1. For each element:
//   g = gradient * gradient_scale + weight_decay * p
//   b = first_step ? g : momentum * b + g                (if momentum is 0: b = g, not stored)
//   p = p - learning_rate * (nesterov ? g + momentum * b : b)
// sgd_update_rows applies these formulas to rows of a row-sparse table (rows.h). No autograd
// operation wraps these launchers.
#include "core/cpu/vector_math.h"
#include "optim/kernels/row_update.h"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.h"

namespace tessera::cpu {

namespace {

template <class T>
void plain_range(float* parameters, const T* gradients, const UpdateHyper& hyper, int64_t begin,
                 int64_t end) {
  const float scale = hyper.gradient_scale;
  const float decay = hyper.weight_decay;
  const float rate = hyper.learning_rate;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float p = parameters[i];
    const float g = multiply_add(decay, p, float(gradients[i]) * scale);
    parameters[i] = multiply_add(-rate, g, p);
  }
}

template <class T>
void momentum_range(float* parameters, float* momentum, const T* gradients,
                    const UpdateHyper& hyper, int64_t begin, int64_t end) {
  const float scale = hyper.gradient_scale;
  const float decay = hyper.weight_decay;
  const float rate = hyper.learning_rate;
  const float beta = hyper.beta1;
  const bool first_step = hyper.first_step;
  // The direction of the update is gradient_share * g + buffer_share * b.
  const float gradient_share = hyper.nesterov ? 1.0f : 0.0f;
  const float buffer_share = hyper.nesterov ? beta : 1.0f;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float p = parameters[i];
    const float g = multiply_add(decay, p, float(gradients[i]) * scale);
    const float b = first_step ? g : multiply_add(beta, momentum[i], g);
    momentum[i] = b;
    parameters[i] = multiply_add(-rate, multiply_add(buffer_share, b, gradient_share * g), p);
  }
}

}  // namespace

void sgd_update(const Context&, const Tensor& parameters, const Tensor& momentum,
                const Tensor& gradients, std::span<const UpdateSegment> segments,
                std::span<const UpdateHyper> groups, const StepScalars* scalars) {
  const bool has_momentum = any_momentum(groups);
  check_update("sgd_update", parameters, {gradients, has_momentum ? momentum : gradients});
  visit_float(gradients.dtype(), "sgd_update", [&]<class T>() {
    float* p = parameters.data<float>();
    float* b = has_momentum ? momentum.data<float>() : nullptr;
    const T* g = gradients.data<T>();
    for_each_segment("sgd_update", parameters, segments, groups, scalars,
                     [=](const UpdateHyper& hyper, int64_t begin, int64_t end) {
                       if (hyper.beta1 == 0) {
                         plain_range(p, g, hyper, begin, end);
                       } else {
                         momentum_range(p, b, g, hyper, begin, end);
                       }
                     });
  });
}

void sgd_update_rows(const Context&, const RowUpdate& update, const UpdateHyper& hyper) {
  const bool has_momentum = hyper.beta1 != 0;
  check_row_update("sgd_update_rows", update, has_momentum ? 1 : 0);
  const int64_t width = update.parameters.size(1);
  for_each_row(update, hyper, [&](int64_t row, const float* gradient, const UpdateHyper& scaled) {
    float* const p = update.parameters.data<float>() + row * width;
    if (has_momentum) {
      momentum_range(p, update.state[0].data<float>() + row * width, gradient, scaled, 0, width);
    } else {
      plain_range(p, gradient, scaled, 0, width);
    }
  });
}

}  // namespace tessera::cpu
