// A pass of an image classifier over images that it was not trained on, shared by all evaluations.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "data/images/image_batches.h"
#include "dist/bootstrap.h"
#include "nn/module.h"
#include "train/images/image_evaluation.h"

namespace tessera::train {

/// Looks at a batch's logits (n, classes) and labels (n), on the model's device, and writes its
/// results. They are 0 before the call.
using JudgeBatch =
    std::function<void(const Tensor& logits, const Tensor& labels, std::span<float> results)>;

/// Runs the model, without gradients and in evaluation mode, over all of `set` in batches that are
/// divided among the ranks. A batch has room for `values` results, or, if `per_image`, for
/// work.batch * values: a smaller last batch leaves the rest 0. Returns all results in order, with
/// the same bits on every rank and for any number of ranks. Collective.
std::vector<float> evaluation_pass(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                   const data::ImageTransformOptions& transform,
                                   const EvaluationWork& work, const dist::World& world,
                                   int64_t values, bool per_image, const JudgeBatch& judge);

}  // namespace tessera::train
