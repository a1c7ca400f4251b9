// Creates image classifiers by name.
#pragma once

#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "models/image/image_sizes.h"
#include "models/image/resnet.h"
#include "models/image/vgg.h"
#include "nn/module.h"

namespace tessera::models {

using ImageConfig = std::variant<ResNetConfig, VggConfig>;

/// Returns the config of the model `name`. For an unknown name, throws InputError with a list of
/// the known names.
ImageConfig image_config(const std::string& name, const ImageSizes& sizes);
/// Builds a ResNet or a VGG: (N, H, W, C) -> (N, classes). Throws InputError as image_config does,
/// or if the model cannot have these sizes.
std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes);
std::vector<std::string> image_classifier_names();

}  // namespace tessera::models
