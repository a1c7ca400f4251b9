#include "apps/predict_transform.h"

namespace tessera::apps {

data::ImageTransformOptions predict_transform(const models::ImageModel& model,
                                              const data::ImageShape& image) {
  const auto [side, channels, classes] = model.sizes;
  data::ImageTransformOptions options{.shape = {side, side, channels},
                                      .norm = {.mean = model.norm.mean, .std = model.norm.std}};
  const bool other_size = image != options.shape;
  // A model that resizes was evaluated on the resized middle of every image, also of images of its
  // own size. A model that does not resize has only seen whole images, so nothing is cut off that
  // fits into its square.
  options.resizes = model.resizes.value_or(false) || other_size;
  if (model.resizes == false) options.evaluated_share = 1;
  return options;
}

}  // namespace tessera::apps
