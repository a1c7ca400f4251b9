// The models that label images, by name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/image_sizes.h"
#include "nn/module.h"

namespace tessera::models {

/// A ResNet or a VGG: (N, H, W, C) -> (N, classes). Throws InputError naming those that there are.
std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes);
std::vector<std::string> image_classifier_names();

}  // namespace tessera::models
