// The launchers of Adagrad on CUDA, with the formulas of adagrad.cpp.
#include "optim/kernels/row_update.cuh"
#include "optim/kernels/update.h"
#include "optim/kernels/update_segments.cuh"

namespace tessera::cuda {

namespace {

template <class T>
struct Adagrad {
  float* parameters;
  float* sums;
  const T* gradients;

  static __device__ void apply(const UpdateHyper& hyper, float& p, float& v, float gradient) {
    const float g = fmaf(hyper.weight_decay, p, gradient * hyper.gradient_scale);
    v = fmaf(g, g, v);
    p = p - hyper.learning_rate * g / (sqrtf(v) + hyper.epsilon);
  }

  template <int n>
  __device__ void update(const UpdateTable& table, int64_t at) const {
    // The loads are issued first, so that they overlap with the search for the segment.
    Floats<n> p = load<n>(parameters + at);
    Floats<n> v = load<n>(sums + at);
    const Floats<n> gradient = load<n>(gradients + at);
    UpdateHyper hyper;
    if (!find_hyper(table, at, hyper)) return;
    for (int k = 0; k < n; ++k) apply(hyper, p.value[k], v.value[k], gradient.value[k]);
    store<n>(sums + at, v);
    store<n>(parameters + at, p);
  }
  __device__ void update_one(int64_t at, float gradient, const UpdateHyper& hyper) const {
    apply(hyper, parameters[at], sums[at], gradient);
  }
};

constexpr int lanes = 16;
constexpr int rows_per_block = row_update_threads / lanes;

// Half a warp updates a row. The squares are added in the same order as on the CPU.
__global__ void __launch_bounds__(row_update_threads)
    rowwise_kernel(float* parameters, float* sums, RowUpdateTable table, UpdateHyper hyper) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t i = int64_t{blockIdx.x} * rows_per_block + threadIdx.x / lanes;
  const bool updates = i < table.count && table.scale(hyper);
  const int64_t row = updates ? table.rows[i] - table.first : 0;
  float* const p = parameters + row * table.width;
  const auto gradient = [&](int64_t column) {
    return fmaf(hyper.weight_decay, p[column], table.gradient(i, column) * hyper.gradient_scale);
  };
  double sum = 0;
  for (int64_t c = lane; updates && c < table.width; c += lanes) {
    const double g = gradient(c);
    sum += g * g;
  }
  // Adds the sums of the half warp's lanes pairwise. Lane 0 of the half warp then has the total.
  for (int width = lanes / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(whole_warp, sum, width);
  }
  const int first_lane = static_cast<int>(threadIdx.x) % warp_size / lanes * lanes;
  // Every lane reads the row's v before the shuffle, because lane 0 overwrites v after the shuffle.
  const float before = updates ? sums[row] : 0.0f;
  sum = __shfl_sync(whole_warp, sum, first_lane);
  if (!updates) return;
  const float v = before + static_cast<float>(sum / static_cast<double>(table.width));
  const float rate = hyper.learning_rate / (sqrtf(v) + hyper.epsilon);
  for (int64_t c = lane; c < table.width; c += lanes) p[c] = fmaf(-rate, gradient(c), p[c]);
  if (lane == 0) sums[row] = v;
}

}  // namespace

void adagrad_update(const Context& context, const Tensor& parameters, const Tensor& sums,
                    const Tensor& gradients, std::span<const UpdateSegment> segments,
                    std::span<const UpdateHyper> groups, const StepScalars* scalars) {
  check_update("adagrad_update", parameters, {sums, gradients});
  visit_float(gradients.dtype(), "adagrad_update", [&]<class T>() {
    const Adagrad<T> rule{parameters.data<float>(), sums.data<float>(), gradients.data<T>()};
    constexpr int n = neighbours<float, T>;
    const bool aligned = aligned_for<n>(rule.parameters) && aligned_for<n>(rule.sums) &&
                         aligned_for<n>(rule.gradients);
    launch_update<n>(context, "adagrad_update", rule, aligned, parameters.elements(), segments,
                     groups, scalars);
  });
}

void adagrad_update_rows(const Context& context, const RowUpdate& update,
                         const UpdateHyper& hyper) {
  check_row_update("adagrad_update_rows", update, 1);
  const Adagrad<float> rule{update.parameters.data<float>(), update.state[0].data<float>(),
                            nullptr};
  launch_row_update(context, "adagrad_update_rows", rule, update, hyper);
}

void rowwise_adagrad_update_rows(const Context& context, const RowUpdate& update,
                                 const UpdateHyper& hyper) {
  check_row_update("rowwise_adagrad_update_rows", update, 1, true);
  if (update.count == 0) return;
  launch(context, "rowwise_adagrad_update_rows",
         {blocks_for(update.count, rows_per_block), row_update_threads}, rowwise_kernel,
         update.parameters.data<float>(), update.state[0].data<float>(), RowUpdateTable(update),
         hyper);
}

}  // namespace tessera::cuda
