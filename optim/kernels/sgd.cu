// sgd_update on CUDA: SGD with momentum on all segments in one launch, with the formulas of
// sgd.cpp.
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Sgd {
  float* parameters;
  float* momentum;  // nullptr if no group has momentum
  const T* gradients;

  template <int n>
  __device__ void update(const UpdateTable& table, int64_t at) const {
    // These loads are issued first, so that the search for the segment overlaps with them.
    Floats<n> p = load<n>(parameters + at);
    Floats<n> b = momentum != nullptr ? load<n>(momentum + at) : Floats<n>{};
    const Floats<n> gradient = load<n>(gradients + at);
    UpdateHyper hyper;
    if (!find_hyper(table, at, hyper)) return;
    const bool has_momentum = hyper.beta1 != 0;
    // The step direction is gradient_share * g + buffer_share * b.
    const float gradient_share = hyper.nesterov ? 1.0f : 0.0f;
    const float buffer_share = hyper.nesterov ? hyper.beta1 : 1.0f;
    for (int k = 0; k < n; ++k) {
      const float g = fmaf(hyper.weight_decay, p.value[k],
                           gradient.value[k] * hyper.gradient_scale);
      b.value[k] = hyper.first_step ? g : fmaf(hyper.beta1, b.value[k], g);
      const float along =
          has_momentum ? fmaf(buffer_share, b.value[k], gradient_share * g) : g;
      p.value[k] = fmaf(-hyper.learning_rate, along, p.value[k]);
    }
    if (has_momentum) store<n>(momentum + at, b);
    store<n>(parameters + at, p);
  }
};

}  // namespace

void sgd_update(const Context& context, const Tensor& parameters, const Tensor& momentum,
                const Tensor& gradients, std::span<const UpdateSegment> segments,
                std::span<const UpdateHyper> groups, const StepScalars* scalars) {
  const bool has_momentum = any_momentum(groups);
  check_update("sgd_update", parameters, {gradients, has_momentum ? momentum : gradients});
  visit_float(gradients.dtype(), "sgd_update", [&]<class T>() {
    const Sgd<T> rule{parameters.data<float>(), has_momentum ? momentum.data<float>() : nullptr,
                      gradients.data<T>()};
    constexpr int n = neighbours<float, T>;
    const bool aligned = aligned_for<n>(rule.parameters) && aligned_for<n>(rule.momentum) &&
                         aligned_for<n>(rule.gradients);
    launch_update<n>(context, "sgd_update", rule, aligned, parameters.elements(), segments, groups,
                     scalars);
  });
}

}  // namespace tessera::cuda
