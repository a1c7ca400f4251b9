#include "apps/predict_transform.h"

namespace tessera::apps {

data::ImageTransformOptions predict_transform(const models::ImageModel& model,
                                              const data::ImageShape& image) {
  const auto [side, channels, classes] = model.sizes;
  data::ImageTransformOptions options{.shape = {side, side, channels},
                                      .norm = {.mean = model.norm.mean, .std = model.norm.std}};
  const bool other_size = image != options.shape;
  // An image of another size is always resized. An image of the model's own size is resized only if
  // model.resizes is true, because training then evaluated the model on resized images. Resizing
  // takes the middle part of the image: evaluated_share of the shorter side, and the same length of
  // the longer side. If model.resizes is false, the model has seen only whole images. So as little
  // as possible is cut off: the whole shorter side is used.
  options.resizes = model.resizes.value_or(false) || other_size;
  if (model.resizes == false) options.evaluated_share = 1;
  return options;
}

}  // namespace tessera::apps
