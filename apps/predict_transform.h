// Chooses how `predict` prepares an image for a model.
#pragma once

#include "data/images/augment.h"
#include "models/image/image_model.h"

namespace tessera::apps {

/// Returns the options of the ImageTransform whose evaluate() makes the model's input from an image
/// of this shape. The image must have as many channels as the model.
data::ImageTransformOptions predict_transform(const models::ImageModel& model,
                                              const data::ImageShape& image);

}  // namespace tessera::apps
