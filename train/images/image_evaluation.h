// How well a model labels images that it was not trained on.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "data/images/image_batches.h"
#include "dist/bootstrap.h"
#include "nn/module.h"

namespace tessera::train {

struct ImageEvaluation {
  float loss = 0;  // mean cross-entropy in nats
  float top1 = 0;  // fraction of images whose class is the first guess,
  float top5 = 0;  // and among the first five
};

/// f32 of each batch that the ranks bring together at the end.
inline constexpr int64_t evaluation_counts = 3;

struct EvaluationWork {
  int64_t batch = 1;  // images
  int workers = 1;    // threads that prepare them
};

/// Over all of `set` in batches. The ranks share the batches, and every rank gets the
/// same bits, which do not depend on how many ranks there are. Every rank runs as many forwards.
/// Collective.
ImageEvaluation evaluate_images(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                const data::ImageTransformOptions& transform,
                                const EvaluationWork& work, const dist::World& world);

/// How many classes a row of logits has before the target: those that are larger, and equal ones
/// before it. NaN is before everything.
int64_t place_of_target(std::span<const float> logits, int32_t target);

}  // namespace tessera::train
