// Measures loss and accuracy of an image classifier on images that it was not trained on.
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

/// The number of f32 values per batch that the ranks sum at the end: loss, top1 and top5.
inline constexpr int64_t evaluation_counts = 3;

struct EvaluationWork {
  int64_t batch = 1;  // images per batch
  int workers = 1;    // threads that prepare images
};

/// Evaluates all of `set` in batches, which are divided among the ranks. Every rank runs the same
/// number of forward passes and gets the same bits, for any number of ranks. Collective.
ImageEvaluation evaluate_images(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                const data::ImageTransformOptions& transform,
                                const EvaluationWork& work, const dist::World& world);

/// Returns the number of classes that come before the target in a row of logits: classes with a
/// larger logit, and classes with an equal logit and a lower index. If a logit is NaN or +infinity,
/// the classes cannot be ranked. The result is then the largest int64_t, so that the target does
/// not count as one of the first guesses, even if there are fewer classes than guesses.
int64_t place_of_target(std::span<const float> logits, int32_t target);

}  // namespace tessera::train
