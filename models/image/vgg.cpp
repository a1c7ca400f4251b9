#include "models/image/vgg.h"

#include <map>

namespace tessera::models {
namespace {

using Stages = std::vector<std::vector<int64_t>>;

const std::map<std::string, Stages>& presets() {
  static const std::map<std::string, Stages> table = {
      {"vgg11", {{64}, {128}, {256, 256}, {512, 512}, {512, 512}}},
      {"vgg16", {{64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}}},
  };
  return table;
}

void check(const VggConfig& config) {
  config.sizes.validate();
  const int64_t least = int64_t{1} << config.stages.size();
  if (config.sizes.side < least) {
    fail_input("vgg: images of {} x {} pixels are halved {} times, expected at least {} x {}",
               config.sizes.side, config.sizes.side, config.stages.size(), least, least);
  }
}

}  // namespace

VggConfig VggConfig::preset(const std::string& name, const ImageSizes& sizes) {
  const auto found = presets().find(name);
  if (found == presets().end()) {
    fail_input("there is no model '{}'; there are {}", name, fmt::join(preset_names(), ", "));
  }
  constexpr int64_t small_side = 64;
  return {.stages = found->second, .hidden = sizes.side <= small_side ? 512 : 4096, .sizes = sizes};
}

std::vector<std::string> VggConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, stages] : presets()) names.push_back(name);
  return names;
}

Vgg::Vgg(const VggConfig& config) {
  check(config);
  int64_t in = config.sizes.channels;
  int64_t side = config.sizes.side;
  for (const std::vector<int64_t>& stage : config.stages) {
    for (const int64_t channels : stage) {
      features_.emplace<nn::Conv2d>(in, channels, 3,
                                    nn::Conv2d::Options{.convolution = {.padding = 1}});
      features_.emplace<nn::Relu>();
      in = channels;
    }
    features_.emplace<nn::MaxPool2d>(PoolOptions{.kernel = 2, .stride = 2});
    side /= 2;
  }
  const nn::Linear::Options narrow{.initializer = nn::Initializer::normal(0.01f)};
  classifier_.emplace<nn::Linear>(in * side * side, config.hidden, narrow);
  classifier_.emplace<nn::Relu>();
  classifier_.emplace<nn::Dropout>(config.dropout, 0);
  classifier_.emplace<nn::Linear>(config.hidden, config.hidden, narrow);
  classifier_.emplace<nn::Relu>();
  classifier_.emplace<nn::Dropout>(config.dropout, 1);
  classifier_.emplace<nn::Linear>(config.hidden, config.sizes.classes, narrow);
  begin_block();
  add("features", features_);
  begin_block();
  add("classifier", classifier_);
}

Tensor Vgg::forward(const Tensor& images) {
  const Tensor features = ops::flatten(features_(images));
  return classifier_(features);
}

}  // namespace tessera::models
