// adagrad_update: Adagrad on flat tensors of n elements each, as torch.optim.Adagrad defines it.
// Parameters p and sums of squares v are f32, gradients have any floating-point dtype. Per element:
//   g = gradient * gradient_scale + weight_decay * p
//   v = v + g^2
//   p = p - learning_rate * g / (sqrt(v) + epsilon)
// adagrad_update_rows applies these formulas to rows of a row-sparse table (rows.h).
// rowwise_adagrad_update_rows has one v for each row, and adds the mean of g^2 over the row to v.
// No autograd operation wraps these launchers.
#include <cmath>

#include "core/cpu/vector_math.h"
#include "optim/kernels/row_update.h"
#include "optim/kernels/square_sums_lanes.h"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.h"

namespace tessera::cpu {

namespace {

template <class T>
void adagrad_range(float* parameters, float* sums, const T* gradients, const UpdateHyper& hyper,
                   int64_t begin, int64_t end) {
  const float scale = hyper.gradient_scale;
  const float decay = hyper.weight_decay;
  const float rate = hyper.learning_rate;
  const float epsilon = hyper.epsilon;
#pragma omp simd
  for (int64_t i = begin; i < end; ++i) {
    const float p = parameters[i];
    const float g = multiply_add(decay, p, float(gradients[i]) * scale);
    const float v = multiply_add(g, g, sums[i]);
    sums[i] = v;
    parameters[i] = p - rate * g / (std::sqrt(v) + epsilon);
  }
}

}  // namespace

void adagrad_update(const Context&, const Tensor& parameters, const Tensor& sums,
                    const Tensor& gradients, std::span<const UpdateSegment> segments,
                    std::span<const UpdateHyper> groups, const StepScalars* scalars) {
  check_update("adagrad_update", parameters, {sums, gradients});
  visit_float(gradients.dtype(), "adagrad_update", [&]<class T>() {
    float* p = parameters.data<float>();
    float* v = sums.data<float>();
    const T* g = gradients.data<T>();
    for_each_segment("adagrad_update", parameters, segments, groups, scalars,
                     [=](const UpdateHyper& hyper, int64_t begin, int64_t end) {
                       adagrad_range(p, v, g, hyper, begin, end);
                     });
  });
}

void adagrad_update_rows(const Context&, const RowUpdate& update, const UpdateHyper& hyper) {
  check_row_update("adagrad_update_rows", update, 1);
  const int64_t width = update.parameters.size(1);
  for_each_row(update, hyper, [&](int64_t row, const float* gradient, const UpdateHyper& scaled) {
    const int64_t at = row * width;
    adagrad_range(update.parameters.data<float>() + at, update.state[0].data<float>() + at,
                  gradient, scaled, 0, width);
  });
}

void rowwise_adagrad_update_rows(const Context&, const RowUpdate& update,
                                 const UpdateHyper& hyper) {
  check_row_update("rowwise_adagrad_update_rows", update, 1, true);
  const int64_t width = update.parameters.size(1);
  float* const sums = update.state[0].data<float>();
  for_each_row(update, hyper, [&](int64_t row, const float* gradient, const UpdateHyper& scaled) {
    float* const p = update.parameters.data<float>() + row * width;
    const float scale = scaled.gradient_scale;
    const float decay = scaled.weight_decay;
    const auto g = [=](int64_t c) { return multiply_add(decay, p[c], gradient[c] * scale); };
    // The squares are added in fp64, in the order that square_sums_lanes.h describes.
    double lanes[square_sum_lanes] = {};
    for (int64_t c = 0; c < width; ++c) {
      lanes[c % square_sum_lanes] += double(g(c)) * double(g(c));
    }
    const float v = sums[row] + static_cast<float>(add_lanes(lanes) / double(width));
    sums[row] = v;
    const float rate = scaled.learning_rate / (std::sqrt(v) + scaled.epsilon);
#pragma omp simd
    for (int64_t c = 0; c < width; ++c) p[c] = multiply_add(-rate, g(c), p[c]);
  });
}

}  // namespace tessera::cpu
