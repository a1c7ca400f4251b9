// Residual networks (He et al., arXiv:1512.03385), with torchvision's parameter names.
//
//   models::ResNet model(models::ResNetConfig::preset("resnet20", {.side = 32, .classes = 10}));
//   Tensor logits = model(images);                   // (N, H, W, C) -> (N, classes)
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/image/image_sizes.h"
#include "nn/convolution.h"
#include "nn/layers.h"
#include "nn/residual.h"

namespace tessera::models {

struct ResNetConfig {
  std::vector<int64_t> blocks;  // blocks in each stage; all stages but the first halve the image
  /// Channels of the first stage. Each later stage has twice as many as the stage before it. If
  /// `bottleneck` is true, these are the channels inside the blocks, and the blocks' outputs have
  /// nn::Bottleneck::expansion times as many.
  int64_t width = 0;
  bool bottleneck = false;
  /// If true, the first convolution is 3x3 with stride 1. Otherwise it is 7x7 with stride 2, and a
  /// max pool follows.
  bool small_images = false;
  ImageSizes sizes;

  /// Returns a preset of the paper. For another name, throws InputError with a list of the presets.
  ///
  ///   resnet20, resnet32, resnet56   section 4.2, for small images, but with projections where
  ///                                  the shape changes
  ///   resnet18, resnet34, resnet50   table 1; small_images is true if sizes.side is at most 64
  static ResNetConfig preset(const std::string& name, const ImageSizes& sizes);
  static std::vector<std::string> preset_names();
  /// Returns the side of the image in the last stage, in pixels.
  int64_t last_side() const;
};

class ResNet : public nn::Module {
 public:
  /// Throws InputError if the sizes are out of range, or if there are no stages, no channels,
  /// or no blocks in a stage.
  explicit ResNet(const ResNetConfig& config);
  Tensor forward(const Tensor& images) override;  // (N, H, W, C) -> (N, classes)

 private:
  nn::Conv2d conv1_;
  nn::BatchNorm2d bn1_;
  std::unique_ptr<nn::MaxPool2d> maxpool_;  // nullptr for small images
  std::vector<std::unique_ptr<nn::Sequential>> stages_;
  nn::Linear fc_;
};

}  // namespace tessera::models
