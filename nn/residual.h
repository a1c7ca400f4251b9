// The residual blocks of ResNet (He et al., arXiv:1512.03385). A block adds the shortcut to the
// result of its convolutions. The shortcut is the block's input, or a projection of the input if
// the output has another shape. Parameters are named as in torchvision. The output's height and
// width, H / stride and W / stride, are rounded up.
#pragma once

#include <cstdint>
#include <memory>

#include "nn/convolution.h"
#include "nn/layers.h"

namespace tessera::nn {

/// Two 3x3 convolutions. The first one has the stride.
class BasicBlock : public Module {
 public:
  static constexpr int64_t expansion = 1;
  BasicBlock(int64_t in, int64_t width, int64_t stride);
  Tensor forward(const Tensor& x) override;  // (N, H, W, in) -> (N, H / stride, W / stride, width)

 private:
  Conv2d conv1_;
  BatchNorm2d bn1_;
  Conv2d conv2_;
  BatchNorm2d bn2_;
  std::unique_ptr<Sequential> downsample_;  // nullptr if input and output have the same shape
};

/// 1x1, 3x3 and 1x1 convolutions, narrow in the middle. The 3x3 convolution has the stride, as in
/// torchvision ("ResNet v1.5").
class Bottleneck : public Module {
 public:
  static constexpr int64_t expansion = 4;
  Bottleneck(int64_t in, int64_t width, int64_t stride);
  Tensor forward(const Tensor& x) override;  // -> (N, H / stride, W / stride, 4 width)

 private:
  Conv2d conv1_;
  BatchNorm2d bn1_;
  Conv2d conv2_;
  BatchNorm2d bn2_;
  Conv2d conv3_;
  BatchNorm2d bn3_;
  std::unique_ptr<Sequential> downsample_;
};

}  // namespace tessera::nn
