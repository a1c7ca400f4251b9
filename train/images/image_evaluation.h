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
  float top1 = 0;  // fraction of images whose class is the first guess
  float top5 = 0;  // fraction of images whose class is among the first five guesses
};

/// f32 values per batch that the ranks sum at the end.
inline constexpr int64_t evaluation_counts = 3;

struct EvaluationWork {
  int64_t batch = 1;  // images
  int workers = 1;    // threads that prepare them
};

/// Evaluates all of `set` in batches, which the ranks share. Every rank gets the same bits, which
/// do not depend on the number of ranks, and runs the same number of forwards. Collective.
ImageEvaluation evaluate_images(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                const data::ImageTransformOptions& transform,
                                const EvaluationWork& work, const dist::World& world);

/// The number of classes that come before the target in a row of logits: those with a larger logit,
/// and those with an equal logit and a lower index. A NaN, also the target's own, counts against
/// the target.
int64_t place_of_target(std::span<const float> logits, int32_t target);

}  // namespace tessera::train
