#include "models/image_classifier.h"

#include <algorithm>

#include "models/resnet.h"
#include "models/vgg.h"

namespace tessera::models {

std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes) {
  const auto is_named = [&name](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_named(ResNetConfig::preset_names())) {
    return std::make_unique<ResNet>(ResNetConfig::preset(name, sizes));
  }
  if (is_named(VggConfig::preset_names())) {
    return std::make_unique<Vgg>(VggConfig::preset(name, sizes));
  }
  fail_input("there is no model '{}'; there are {}", name,
             fmt::join(image_classifier_names(), ", "));
}

std::vector<std::string> image_classifier_names() {
  std::vector<std::string> names = ResNetConfig::preset_names();
  for (const std::string& name : VggConfig::preset_names()) names.push_back(name);
  return names;
}

}  // namespace tessera::models
