// VGG (Simonyan and Zisserman, arXiv:1409.1556, table 1), with torchvision's parameter names:
// "features.0.weight", "classifier.6.bias".
//
//   models::Vgg model(models::VggConfig::preset("vgg11", {.side = 224, .classes = 1000}));
//   Tensor logits = model(images);                   // (N, H, W, C) -> (N, classes)
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/image/image_sizes.h"
#include "nn/convolution.h"
#include "nn/layers.h"

namespace tessera::models {

struct VggConfig {
  std::vector<std::vector<int64_t>> stages;  // channels of 3x3 convolutions; a pool ends a stage
  int64_t hidden = 0;                        // width of the classifier's two hidden layers
  float dropout = 0.5f;
  ImageSizes sizes;

  /// Returns vgg11 or vgg16, the paper's columns A and D. The classifier's two hidden layers have a
  /// width of 4096, or of only 512 if the side is at most 64 pixels, because the last stage then
  /// leaves few values. For another name, throws InputError with a list of the presets.
  static VggConfig preset(const std::string& name, const ImageSizes& sizes);
  static std::vector<std::string> preset_names();
};

class Vgg : public nn::Module {
 public:
  /// Throws InputError if the sizes are out of range, or if the pools leave no pixel.
  explicit Vgg(const VggConfig& config);
  Tensor forward(const Tensor& images) override;  // (N, H, W, C) -> (N, classes)

 private:
  nn::Sequential features_;
  nn::Sequential classifier_;
};

}  // namespace tessera::models
