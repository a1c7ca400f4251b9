// A training run of a small ResNet with batch norms, a projection and smoothed labels. The run is
// small enough to repeat in many configurations.
#pragma once

#include "models/image/resnet.h"
#include "tests/support/training.h"

namespace tessera::test {

struct TinyVision {
  int64_t steps = 4;
  Batch batch{.global = 14, .micro = 2};
  models::ResNetConfig model{.blocks = {1, 1},
                             .width = 8,
                             .small_images = true,
                             .sizes = {.side = 7, .channels = 3, .classes = 5}};
  DType dtype = DType::f32;  // the dtype of parameters and images
};

/// The images and labels of a micro-batch. A sample's values depend only on the run's settings and
/// on the sample's number in the run.
struct TinyImages {
  Tensor images;
  Tensor labels;
};
TinyImages tiny_images(const TinyVision& run, const MicroBatch& micro);

/// Returns the training of `model`, which must have the run's sizes and outlive the result.
Training tiny_training(const TinyVision& run, models::ResNet& model);

/// Trains a new model. The result's weights include the running statistics, under names such as
/// "bn1.mean" and "bn1.variance".
TrainingResult train_tiny(const TinyVision& run, const dist::World& world,
                          optim::ZeroOptions options);
Weights statistics_of(const nn::Module& model);

}  // namespace tessera::test
