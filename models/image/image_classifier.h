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

/// Returns the config of a model. Throws InputError, which lists the known names, for another name.
ImageConfig image_config(const std::string& name, const ImageSizes& sizes);
/// Builds a ResNet or a VGG: (N, H, W, C) -> (N, classes). Throws as image_config does, and
/// InputError if the sizes do not make a model.
std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes);
std::vector<std::string> image_classifier_names();

}  // namespace tessera::models
