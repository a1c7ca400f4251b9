#include "nn/residual.h"

namespace tessera::nn {
namespace {

// Returns the options of a convolution that a batch norm follows. The norm subtracts the mean, so a
// bias would have no effect.
Conv2d::Options without_bias(int64_t stride, int64_t padding) {
  return {.convolution = {.stride = stride, .padding = padding}, .bias = false};
}

constexpr BatchNorm2d::Options with_relu{.relu = true};

// Returns the shortcut's projection to the output's shape; nullptr if input and output have the
// same shape.
std::unique_ptr<Sequential> projection(int64_t in, int64_t out, int64_t stride) {
  if (in == out && stride == 1) return nullptr;
  auto modules = std::make_unique<Sequential>();
  modules->emplace<Conv2d>(in, out, 1, without_bias(stride, 0));
  modules->emplace<BatchNorm2d>(out);
  return modules;
}

}  // namespace

// The forward functions reuse one variable for activations. So in evaluation an activation is freed
// right after its use.
//
// Parameters are registered in the order of use, so the shortcut comes before the norm that adds
// it. With this order backward completes one gradient bucket after the other, and ZeRO stage 2
// holds few buckets at a time.
BasicBlock::BasicBlock(int64_t in, int64_t width, int64_t stride)
    : conv1_(in, width, 3, without_bias(stride, 1)),
      bn1_(width, with_relu),
      conv2_(width, width, 3, without_bias(1, 1)),
      bn2_(width, with_relu),
      downsample_(projection(in, width, stride)) {
  begin_block();
  add("conv1", conv1_);
  add("bn1", bn1_);
  add("conv2", conv2_);
  if (downsample_) add("downsample", *downsample_);
  add("bn2", bn2_);
}

Tensor BasicBlock::forward(const Tensor& x) {
  Tensor hidden = bn1_(conv1_(x));
  hidden = conv2_(hidden);
  const Tensor shortcut = downsample_ ? (*downsample_)(x) : x;
  const trace::LayerScope scope(bn2_.name());
  return bn2_.forward(hidden, shortcut);
}

Bottleneck::Bottleneck(int64_t in, int64_t width, int64_t stride)
    : conv1_(in, width, 1, without_bias(1, 0)),
      bn1_(width, with_relu),
      conv2_(width, width, 3, without_bias(stride, 1)),
      bn2_(width, with_relu),
      conv3_(width, expansion * width, 1, without_bias(1, 0)),
      bn3_(expansion * width, with_relu),
      downsample_(projection(in, expansion * width, stride)) {
  begin_block();
  add("conv1", conv1_);
  add("bn1", bn1_);
  add("conv2", conv2_);
  add("bn2", bn2_);
  add("conv3", conv3_);
  if (downsample_) add("downsample", *downsample_);
  add("bn3", bn3_);
}

Tensor Bottleneck::forward(const Tensor& x) {
  Tensor hidden = bn1_(conv1_(x));
  hidden = bn2_(conv2_(hidden));
  hidden = conv3_(hidden);
  const Tensor shortcut = downsample_ ? (*downsample_)(x) : x;
  const trace::LayerScope scope(bn3_.name());
  return bn3_.forward(hidden, shortcut);
}

}  // namespace tessera::nn
