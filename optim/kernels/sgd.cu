// sgd_update on CUDA: SGD with momentum on all segments in one launch, with the formulas of
// sgd.cpp. sgd_update_rows applies the formulas to rows of a row-sparse table (rows.h).
#include "optim/kernels/row_update.cuh"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Sgd {
  float* parameters;
  float* momentum;  // nullptr if no parameter group has momentum
  const T* gradients;

  static __device__ void apply(const UpdateHyper& hyper, float& p, float& b, float gradient) {
    // The direction of the update is gradient_share * g + buffer_share * b, or g if there is no
    // momentum.
    const float gradient_share = hyper.nesterov ? 1.0f : 0.0f;
    const float buffer_share = hyper.nesterov ? hyper.beta1 : 1.0f;
    const float g = fmaf(hyper.weight_decay, p, gradient * hyper.gradient_scale);
    b = hyper.first_step ? g : fmaf(hyper.beta1, b, g);
    const float along = hyper.beta1 != 0 ? fmaf(buffer_share, b, gradient_share * g) : g;
    p = fmaf(-hyper.learning_rate, along, p);
  }

  __device__ void update_one(int64_t at, float gradient, const UpdateHyper& hyper) const {
    float b = momentum != nullptr ? momentum[at] : 0.0f;
    apply(hyper, parameters[at], b, gradient);
    if (momentum != nullptr) momentum[at] = b;
  }

  template <int n>
  __device__ void update(const UpdateTable& table, int64_t at) const {
    // The loads are issued first, so that they overlap with the search for the segment.
    Floats<n> p = load<n>(parameters + at);
    Floats<n> b = momentum != nullptr ? load<n>(momentum + at) : Floats<n>{};
    const Floats<n> gradient = load<n>(gradients + at);
    UpdateHyper hyper;
    if (!find_hyper(table, at, hyper)) return;
    for (int k = 0; k < n; ++k) apply(hyper, p.value[k], b.value[k], gradient.value[k]);
    if (hyper.beta1 != 0) store<n>(momentum + at, b);
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

void sgd_update_rows(const Context& context, const RowUpdate& update, const UpdateHyper& hyper) {
  const bool has_momentum = hyper.beta1 != 0;
  check_row_update("sgd_update_rows", update, has_momentum ? 1 : 0);
  const Sgd<float> rule{update.parameters.data<float>(),
                        has_momentum ? update.state[0].data<float>() : nullptr, nullptr};
  launch_row_update(context, "sgd_update_rows", rule, update, hyper);
}

}  // namespace tessera::cuda
