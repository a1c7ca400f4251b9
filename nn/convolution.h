// Layers of convolutional networks. Images are (N, H, W, C); core/image_ops.h has the operations.
#pragma once

#include <cstdint>
#include <memory>

#include "core/image_ops.h"
#include "nn/module.h"

namespace tessera::nn {

/// A convolution. Its weights have the shape of torch.nn.Conv2d's: (out, in / groups, kh, kw).
class Conv2d : public Module {
 public:
  struct Options {
    Conv2dOptions convolution = {};
    bool bias = true;
  };
  /// The initial weights are normal with standard deviation sqrt(2 / (out kh kw)) (He et al.,
  /// arXiv:1502.01852). The initial biases are zero.
  Conv2d(int64_t in, int64_t out, Size2 kernel, const Options& options);
  Conv2d(int64_t in, int64_t out, Size2 kernel) : Conv2d(in, out, kernel, Options{}) {}
  Tensor forward(const Tensor& x) override;  // (N, H, W, in) -> (N, H', W', out)

  Parameter weight;
  Parameter bias;

 private:
  Conv2dOptions options_;
};

/// Normalises each channel. Evaluation uses the running statistics. Training uses the statistics of
/// the micro-batch, or of a larger batch that contains the micro-batch (RunningStatistics::parts).
///
/// Rules for training with a ZeroOptimizer:
///  - The forward of a micro-batch uses each norm exactly once, in training mode. Otherwise
///    backward throws.
///  - A norm with frozen weight and bias (Parameter::set_trainable) may instead be in evaluation
///    mode during a whole training step. The norm may then be used any number of times, and its
///    running statistics do not change. Fine-tuning can keep the statistics of an earlier training
///    in this way.
///  - With ZeroOptions::graph, every step must use a norm in the same mode. A captured CUDA graph
///    would repeat the norm's mode at the capture, without an error.
class BatchNorm2d : public Module {
 public:
  struct Options {
    float epsilon = 1e-5f;
    float momentum = 0.1f;
    bool relu = false;  // applied to the result, after the residual is added
  };
  BatchNorm2d(int64_t channels, const Options& options);
  explicit BatchNorm2d(int64_t channels) : BatchNorm2d(channels, Options{}) {}
  // The statistics may live longer than this object, because an optimizer may hold them. Their
  // function `fixed` is removed, because it uses this object.
  ~BatchNorm2d() override { statistics_->fixed = nullptr; }
  Tensor forward(const Tensor& x) override { return forward(x, {}); }  // (..., C) -> (..., C)
  /// Adds `residual`, which has x's shape, to the normalised x. An undefined residual adds nothing.
  Tensor forward(const Tensor& x, const Tensor& residual);

  Parameter weight;
  Parameter bias;

 private:
  ops::BatchNormOptions options_;
  std::shared_ptr<RunningStatistics> statistics_;
};

class Relu : public Module {
 public:
  Tensor forward(const Tensor& x) override { return ops::relu(x); }
};

class MaxPool2d : public Module {
 public:
  explicit MaxPool2d(const PoolOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override { return ops::max_pool(x, options_); }

 private:
  PoolOptions options_;
};

class AvgPool2d : public Module {
 public:
  explicit AvgPool2d(const PoolOptions& options) : options_(options) {}
  Tensor forward(const Tensor& x) override { return ops::avg_pool(x, options_); }

 private:
  PoolOptions options_;
};

class GlobalAvgPool : public Module {
 public:
  Tensor forward(const Tensor& x) override { return ops::global_avg_pool(x); }
};

/// (N, H, W, C) -> (N, C H W). As in torch, the elements of one channel are adjacent.
class Flatten : public Module {
 public:
  Tensor forward(const Tensor& x) override { return ops::flatten(x); }
};

}  // namespace tessera::nn
