// adam_update on CUDA: Adam and AdamW on all segments in one launch, with the formulas of adam.cpp.
// With f32 gradients the update moves 28 bytes per element and is bound by memory bandwidth.
// adam_update_rows applies the formulas to rows of a row-sparse table (rows.h).
#include "optim/kernels/row_update.cuh"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Adam {
  float* parameters;
  float* first_moment;
  float* second_moment;
  const T* gradients;

  struct Factors {
    float decay_into_gradient;
    float shrink;
    float step;
    float root_correction;

    __device__ explicit Factors(const UpdateHyper& hyper)
        : decay_into_gradient(hyper.decoupled_decay ? 0.0f : hyper.weight_decay),
          shrink(hyper.decoupled_decay ? 1.0f - hyper.learning_rate * hyper.weight_decay : 1.0f),
          step(hyper.learning_rate / hyper.bias_correction1),
          root_correction(1.0f / sqrtf(hyper.bias_correction2)) {}
  };
  static __device__ void apply(const UpdateHyper& hyper, const Factors& factors, float& p, float& m,
                               float& v, float gradient) {
    const float g = fmaf(factors.decay_into_gradient, p, gradient * hyper.gradient_scale);
    m = fmaf(hyper.beta1, m, (1.0f - hyper.beta1) * g);
    v = fmaf(hyper.beta2, v, (1.0f - hyper.beta2) * g * g);
    const float denominator = fmaf(sqrtf(v), factors.root_correction, hyper.epsilon);
    p = fmaf(p, factors.shrink, -(factors.step * m / denominator));
  }

  __device__ void update_one(int64_t at, float gradient, const UpdateHyper& hyper) const {
    apply(hyper, Factors(hyper), parameters[at], first_moment[at], second_moment[at], gradient);
  }

  template <int n>
  __device__ void update(const UpdateTable& table, int64_t at) const {
    // The loads are issued first, so that they overlap with the search for the segment.
    Floats<n> p = load<n>(parameters + at);
    Floats<n> m = load<n>(first_moment + at);
    Floats<n> v = load<n>(second_moment + at);
    const Floats<n> gradient = load<n>(gradients + at);
    UpdateHyper hyper;
    if (!find_hyper(table, at, hyper)) return;
    const Factors factors(hyper);
    for (int k = 0; k < n; ++k) {
      apply(hyper, factors, p.value[k], m.value[k], v.value[k], gradient.value[k]);
    }
    store<n>(first_moment + at, m);
    store<n>(second_moment + at, v);
    store<n>(parameters + at, p);
  }
};

}  // namespace

void adam_update(const Context& context, const Tensor& parameters, const Tensor& first_moment,
                 const Tensor& second_moment, const Tensor& gradients,
                 std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
                 const StepScalars* scalars) {
  check_update("adam_update", parameters, {first_moment, second_moment, gradients});
  visit_float(gradients.dtype(), "adam_update", [&]<class T>() {
    const Adam<T> rule{parameters.data<float>(), first_moment.data<float>(),
                       second_moment.data<float>(), gradients.data<T>()};
    constexpr int n = neighbours<float, T>;
    const bool aligned = aligned_for<n>(rule.parameters) && aligned_for<n>(rule.first_moment) &&
                         aligned_for<n>(rule.second_moment) && aligned_for<n>(rule.gradients);
    launch_update<n>(context, "adam_update", rule, aligned, parameters.elements(), segments,
                     groups, scalars);
  });
}

void adam_update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) {
  check_row_update("adam_update_rows", update, 2);
  const Adam<float> rule{update.parameters.data<float>(), update.state[0].data<float>(),
                         update.state[1].data<float>(), nullptr};
  launch_row_update(context, "adam_update_rows", rule, update, hyper);
}

}  // namespace tessera::cuda
