#include "models/image/image_classifier.h"

#include <algorithm>

namespace tessera::models {

ImageConfig image_config(const std::string& name, const ImageSizes& sizes) {
  const auto is_named = [&name](const std::vector<std::string>& names) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  if (is_named(ResNetConfig::preset_names())) return ResNetConfig::preset(name, sizes);
  if (is_named(VggConfig::preset_names())) return VggConfig::preset(name, sizes);
  fail_input("there is no model '{}'; there are {}", name,
             fmt::join(image_classifier_names(), ", "));
}

std::unique_ptr<nn::Module> image_classifier(const std::string& name, const ImageSizes& sizes) {
  const ImageConfig config = image_config(name, sizes);
  if (const auto* resnet = std::get_if<ResNetConfig>(&config)) {
    return std::make_unique<ResNet>(*resnet);
  }
  return std::make_unique<Vgg>(std::get<VggConfig>(config));
}

std::vector<std::string> image_classifier_names() {
  std::vector<std::string> names = ResNetConfig::preset_names();
  for (const std::string& name : VggConfig::preset_names()) names.push_back(name);
  return names;
}

}  // namespace tessera::models
