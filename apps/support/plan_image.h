// What a run of train_resnet will hold and send: optim::plan with the model's activations and
// workspace (models/image/image_memory.h), and the images that the run holds ahead of the step.
#pragma once

#include <cstdint>

#include "apps/support/image_options.h"
#include "apps/support/plan_device.h"
#include "data/images/image_data.h"
#include "nn/module.h"
#include "optim/plan/plan.h"

namespace tessera::apps {

/// What a plan needs to know of a run's data.
struct PlannedImages {
  data::ImageShape shape;
  int64_t classes = 0;
  int64_t validation = 0;  // images to evaluate on

  static PlannedImages of(const data::ImageData& data);
};

/// The plan of a rank, with activations and workspace at this process's number of threads. Throws
/// InputError where a number of bytes is beyond int64.
optim::Plan plan_run(const ImageTrainOptions& options, const nn::Module& model,
                     const PlannedImages& images, const PlanDevice& device, int64_t ranks,
                     int stage, int64_t rank);

/// Has the libraries of a GPU choose algorithms for all that any rank will compute.
void choose_algorithms(const ImageTrainOptions& options, const PlannedImages& images,
                       Device device);

}  // namespace tessera::apps
