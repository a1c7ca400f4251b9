// Plans the memory of a run on images. The plan adds to optim::plan the model's activations and
// workspace (models/image/image_memory.h) and the images that the run reads ahead.
#pragma once

#include <cstdint>

#include "data/images/image_data.h"
#include "models/image/image_classifier.h"
#include "train/plan/run_plan.h"

namespace tessera::train {

/// The properties of a run's model and data that a plan needs.
struct PlannedImages {
  models::ImageConfig config;
  DType dtype = DType::f32;  // of images and parameters
  data::ImageShape shape;
  int64_t validation = 0;  // number of images to evaluate on
  float label_smoothing = 0;
};
PlannedImages planned_images(const models::ImageConfig& config, const data::ImageData& data,
                             float label_smoothing = 0);

/// Returns the plan of a rank, with activations and workspace for this process's number of threads.
/// Throws InputError if a number of bytes exceeds int64.
optim::Plan plan_run(const TrainingRun& run, const nn::Module& model, const PlannedImages& images,
                     const JobPlace& place);

/// Makes the GPU's libraries choose algorithms for all sizes of batches that any rank will compute
/// in steps and in evaluations. Evaluations are included even if LoopOptions::eval_every is 0,
/// because log_predictions evaluates too. Rank 0 can then share its choices with the other ranks
/// (dist::share_convolution_choices).
void choose_algorithms(const TrainingRun& run, const PlannedImages& images, Device device);

}  // namespace tessera::train
