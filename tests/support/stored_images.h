// A small set of images in memory, and an image classifier for them, for tests of evaluations.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/context.h"
#include "core/random.h"
#include "data/images/augment.h"
#include "data/images/image_set.h"
#include "models/image/resnet.h"

namespace tessera::test {

/// 22 images in 7 classes, and a ResNet with random weights on the default device.
struct SmallImageTask {
  std::shared_ptr<const data::ImageSet> set;
  data::ImageTransformOptions transform;
  std::unique_ptr<models::ResNet> model;
};

inline SmallImageTask small_image_task() {
  constexpr int64_t count = 22;
  constexpr int64_t classes = 7;
  const data::ImageShape shape{8, 8, 3};
  RandomStream random(1, "images of the test", 0);
  std::vector<uint8_t> pixels(static_cast<size_t>(count * shape.elements()));
  for (uint8_t& pixel : pixels) pixel = static_cast<uint8_t>(random.below(256));
  std::vector<int32_t> labels;
  for (int64_t i = 0; i < count; ++i) labels.push_back(static_cast<int32_t>(random.below(classes)));
  auto model = std::make_unique<models::ResNet>(
      models::ResNetConfig{.blocks = {1, 1},
                           .width = 8,
                           .small_images = true,
                           .sizes = {.side = 8, .channels = 3, .classes = classes}});
  nn::materialize(*model, default_device(), 1);
  return {.set = std::make_shared<data::StoredImages>(
              shape, std::move(pixels), std::move(labels),
              [](int64_t index) { return "image " + std::to_string(index); }),
          .transform = {.shape = shape,
                        .norm = {.mean = {0.4f, 0.5f, 0.6f}, .std = {0.2f, 0.3f, 0.4f}}},
          .model = std::move(model)};
}

}  // namespace tessera::test
