#include "nn/convolution.h"

#include "core/ops/scale.h"
#include "core/recompute.h"

namespace tessera::nn {

Conv2d::Conv2d(int64_t in, int64_t out, Size2 kernel, const Options& options)
    : options_(options.convolution) {
  const auto [height, width] = kernel;
  const int64_t groups = options_.groups;
  TESSERA_CHECK(in >= 1 && out >= 1 && height >= 1 && width >= 1,
                "Conv2d: {} inputs, {} outputs and a kernel of {} x {}, expected at least 1 each",
                in, out, height, width);
  TESSERA_CHECK(groups >= 1 && in % groups == 0 && out % groups == 0,
                "Conv2d: {} groups, expected a divisor of {} inputs and {} outputs", groups, in,
                out);
  weight = add("weight", Parameter({out, in / groups, height, width},
                                   Initializer::he_normal(out * height * width)));
  weight.set_backward_reads(BackwardReads::for_input_gradient);
  if (!options.bias) return;
  bias = add("bias", Parameter({out}, Initializer::zeros()));
  bias.set_backward_reads(BackwardReads::never);
}

Tensor Conv2d::forward(const Tensor& x) { return ops::conv2d(x, weight, bias, options_); }

BatchNorm2d::BatchNorm2d(int64_t channels, const Options& options)
    : options_{options.epsilon, options.relu},
      statistics_(std::make_shared<RunningStatistics>(channels, options.momentum)) {
  TESSERA_CHECK(channels >= 1, "BatchNorm2d: {} channels, expected at least 1", channels);
  weight = add("weight", Parameter({channels}, Initializer::ones()));
  bias = add("bias", Parameter({channels}, Initializer::zeros()));
  bias.set_backward_reads(BackwardReads::never);
  statistics_->fixed = [this] { return !training() && !weight.trainable() && !bias.trainable(); };
  add(statistics_);
}

Tensor BatchNorm2d::forward(const Tensor& x, const Tensor& residual) {
  if (!training()) {
    TESSERA_CHECK(
        statistics_->mean.allocated(),
        "BatchNorm2d: the running statistics have no memory yet; call materialize or create "
        "an optimizer before evaluation");
    return ops::batch_norm_with(statistics_->mean, statistics_->variance, x, weight, bias, residual,
                                options_);
  }
  const ops::BatchNorm result =
      ops::batch_norm(x, weight, bias, residual, options_, statistics_->parts);
  // While backward recomputes this forward, the statistics are not observed: the first forward has
  // observed them.
  if (segment_is_repeated()) return result.y;
  const int64_t rows = x.elements() / x.size(-1) * statistics_->parts.count;
  const Context context = current_context(x.device());
  const Tensor unbiased = context.workspace(result.variance.shape());
  kernels::scale(context, unbiased, result.variance,
                 static_cast<float>(static_cast<double>(rows) / static_cast<double>(rows - 1)));
  statistics_->observe(result.mean, unbiased);
  return result.y;
}

}  // namespace tessera::nn
