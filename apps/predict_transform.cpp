#include "apps/predict_transform.h"

namespace tessera::apps {

data::ImageTransformOptions predict_transform(const models::ImageModel& model,
                                              const data::ImageShape& image) {
  const auto [side, channels, classes] = model.sizes;
  data::ImageTransformOptions options{.shape = {side, side, channels},
                                      .norm = {.mean = model.norm.mean, .std = model.norm.std}};
  const bool other_size = image != options.shape;
  // If model.resizes is true, the model was evaluated on the resized middle of every image, even of
  // an image of the model's own size. If model.resizes is false, the model has seen only whole
  // images. So as little as possible is cut off: the whole of the image's shorter side is used, and
  // an equally long middle part of its longer side.
  options.resizes = model.resizes.value_or(false) || other_size;
  if (model.resizes == false) options.evaluated_share = 1;
  return options;
}

}  // namespace tessera::apps
