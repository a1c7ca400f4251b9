#include "models/image/resnet.h"

#include <map>

namespace tessera::models {
namespace {

using nn::BasicBlock;
using nn::Bottleneck;

const std::map<std::string, ResNetConfig>& presets() {
  static const std::map<std::string, ResNetConfig> table = {
      {"resnet20", {.blocks = {3, 3, 3}, .width = 16, .small_images = true, .sizes = {}}},
      {"resnet32", {.blocks = {5, 5, 5}, .width = 16, .small_images = true, .sizes = {}}},
      {"resnet56", {.blocks = {9, 9, 9}, .width = 16, .small_images = true, .sizes = {}}},
      {"resnet18", {.blocks = {2, 2, 2, 2}, .width = 64, .sizes = {}}},
      {"resnet34", {.blocks = {3, 4, 6, 3}, .width = 64, .sizes = {}}},
      {"resnet50", {.blocks = {3, 4, 6, 3}, .width = 64, .bottleneck = true, .sizes = {}}},
  };
  return table;
}

const ResNetConfig& validated(const ResNetConfig& config) {
  config.sizes.validate();
  if (config.blocks.empty() || config.width < 1) {
    fail_input("resnet: {} stages of width {}, expected at least 1 each", config.blocks.size(),
               config.width);
  }
  for (const int64_t blocks : config.blocks) {
    if (blocks < 1) fail_input("resnet: a stage of {} blocks, expected at least 1", blocks);
  }
  return config;
}

nn::Conv2d::Options first_convolution(bool small_images) {
  if (small_images) return {.convolution = {.stride = 1, .padding = 1}, .bias = false};
  return {.convolution = {.stride = 2, .padding = 3}, .bias = false};
}

int64_t expansion(const ResNetConfig& config) {
  return config.bottleneck ? Bottleneck::expansion : BasicBlock::expansion;
}

int64_t last_width(const ResNetConfig& config) {
  return config.width << (config.blocks.size() - 1);
}

}  // namespace

ResNetConfig ResNetConfig::preset(const std::string& name, const ImageSizes& sizes) {
  const auto found = presets().find(name);
  if (found == presets().end()) {
    fail_input("there is no model '{}'; there are {}", name, fmt::join(preset_names(), ", "));
  }
  constexpr int64_t small_side = 64;
  ResNetConfig config = found->second;
  config.small_images = config.small_images || sizes.side <= small_side;
  config.sizes = sizes;
  return config;
}

std::vector<std::string> ResNetConfig::preset_names() {
  std::vector<std::string> names;
  for (const auto& [name, config] : presets()) names.push_back(name);
  return names;
}

int64_t ResNetConfig::last_side() const {
  const size_t halved = blocks.size() - 1 + (small_images ? 0 : 2);
  int64_t side = sizes.side;
  for (size_t i = 0; i < halved; ++i) side = (side + 1) / 2;
  return side;
}

ResNet::ResNet(const ResNetConfig& config)
    : conv1_(validated(config).sizes.channels, config.width, config.small_images ? 3 : 7,
             first_convolution(config.small_images)),
      bn1_(config.width, {.relu = true}),
      fc_(expansion(config) * last_width(config), config.sizes.classes) {
  begin_block();
  add("conv1", conv1_);
  add("bn1", bn1_);
  if (!config.small_images) {
    maxpool_ = std::make_unique<nn::MaxPool2d>(
        PoolOptions{.kernel = 3, .stride = 2, .padding = 1});
  }
  int64_t in = config.width;
  for (size_t i = 0; i < config.blocks.size(); ++i) {
    auto stage = std::make_unique<nn::Sequential>();
    const int64_t width = config.width << i;
    for (int64_t block = 0; block < config.blocks[i]; ++block) {
      const int64_t stride = block == 0 && i > 0 ? 2 : 1;
      if (config.bottleneck) {
        stage->emplace<Bottleneck>(in, width, stride);
      } else {
        stage->emplace<BasicBlock>(in, width, stride);
      }
      in = expansion(config) * width;
    }
    add("layer" + std::to_string(i + 1), *stage);
    stages_.push_back(std::move(stage));
  }
  begin_block();
  add("fc", fc_);
}

Tensor ResNet::forward(const Tensor& images) {
  Tensor x = bn1_(conv1_(images));
  if (maxpool_) x = (*maxpool_)(x);
  for (const auto& stage : stages_) x = (*stage)(x);
  return fc_(ops::global_avg_pool(x));
}

}  // namespace tessera::models
