// The weights of rows for cross_entropy with class weights or an ignored target, on CUDA. The
// backward is in cross_entropy.cu.
#include "core/ops/weighted_cross_entropy.h"

#include "core/cuda/fault.cuh"
#include "core/cuda/kernel.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

struct TargetWeights {
  float* weights;
  int32_t* looked_up;
  const int32_t* targets;
  const float* of_class;  // null if all classes have weight 1
  int64_t classes;
  bool ignores;
  int32_t ignored;
  int64_t rows;
};

__global__ void __launch_bounds__(threads) target_weights_kernel(TargetWeights args) {
  const int64_t row = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (row >= args.rows) return;
  const int32_t target = args.targets[row];
  const bool counts = !args.ignores || target != args.ignored;
  float weight = 1;
  if (args.of_class != nullptr) {
    weight = target >= 0 && target < args.classes ? args.of_class[target] : 0.0f;
  }
  args.weights[row] = counts ? weight : 0.0f;
  args.looked_up[row] = counts ? target : 0;
}

__global__ void check_total_weight_kernel(Fault* fault, const float* total, int64_t rows) {
  if (*total == 0) report_fault(fault, FaultKind::cross_entropy_weights, 0, 0, rows);
}

}  // namespace

void target_weights(const Context& context, const Tensor& weights, const Tensor& looked_up,
                    const Tensor& targets, const Tensor& class_weights,
                    std::optional<int32_t> ignored) {
  const bool weighted = class_weights.defined();
  const TargetWeights args{.weights = weights.data<float>(),
                           .looked_up = looked_up.data<int32_t>(),
                           .targets = targets.data<int32_t>(),
                           .of_class = weighted ? class_weights.data<float>() : nullptr,
                           .classes = weighted ? class_weights.elements() : 0,
                           .ignores = ignored.has_value(),
                           .ignored = ignored.value_or(0),
                           .rows = targets.elements()};
  launch(context, "target_weights", {blocks_for(args.rows, threads), threads},
         target_weights_kernel, args);
}

/// The host does not wait for the result. If the total is zero, the host throws at its next
/// synchronisation with the device.
void check_total_weight(const Context& context, const Tensor& total, int64_t rows) {
  launch(context, "check_total_weight", {1, 1}, check_total_weight_kernel, device_fault(context),
         total.data<float>(), rows);
}

}  // namespace tessera::cuda
