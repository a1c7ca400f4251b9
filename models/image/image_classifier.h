// Image classifiers, by name.
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

/// The config of a model. For an unknown name throws InputError, which lists the known ones.
ImageConfig image_config(const std::string& name, const ImageSizes& sizes);
/// A ResNet or a VGG: (N, H, W, C) -> (N, classes). Throws as image_config does.
std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes);
std::vector<std::string> image_classifier_names();

}  // namespace tessera::models
