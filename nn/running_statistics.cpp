#include "nn/running_statistics.h"

#include "core/ops/add.h"
#include "core/ops/fill.h"
#include "core/ops/scale.h"

namespace tessera::nn {
namespace {

void fold(const Tensor& running, const Tensor& value, float momentum) {
  const Context context = current_context(running.device());
  const Tensor share = context.workspace(value.shape());
  kernels::scale(context, share, value, momentum);
  kernels::scale(context, running, running, 1 - momentum);
  kernels::add(context, running, running, share);
}

}  // namespace

RunningStatistics::RunningStatistics(int64_t channels, float with_momentum)
    : mean(Tensor::unallocated({channels}, DType::f32)),
      variance(Tensor::unallocated({channels}, DType::f32)),
      momentum(with_momentum) {
  TESSERA_CHECK(momentum >= 0 && momentum <= 1, "running statistics: momentum {}, expected 0 to 1",
                momentum);
}

void RunningStatistics::attach(const std::shared_ptr<Storage>& storage, int64_t offset_bytes) {
  mean.attach(storage, offset_bytes);
  variance.attach(storage, offset_bytes + mean.bytes());
}

void RunningStatistics::reset() {
  kernels::fill(current_context(mean.device()), mean, 0);
  kernels::fill(current_context(variance.device()), variance, 1);
}

void RunningStatistics::observe(const Tensor& batch_mean, const Tensor& batch_variance) {
  if (observed) {
    observed(batch_mean, batch_variance);
    return;
  }
  TESSERA_CHECK(mean.allocated(),
                "running statistics: they have no memory yet; call materialize or create an "
                "optimizer before training");
  fold(mean, batch_mean, momentum);
  fold(variance, batch_variance, momentum);
}

}  // namespace tessera::nn
