// Runs an image classifier over images that it was not trained on, and collects results of
// each batch. Every evaluation of an image classifier uses this pass.
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

/// Computes a batch's `results` from its logits (n, classes) and labels (n), which are on the
/// model's device. All `results` are 0 before the call.
using JudgeBatch =
    std::function<void(const Tensor& logits, const Tensor& labels, std::span<float> results)>;

/// Runs the model, without gradients and in evaluation mode, over all of `set` in batches that are
/// divided among the ranks. If `per_image` is false, a batch has `values` results. If it is true, a
/// batch has work.batch * values results. In a smaller last batch, results without an image are 0.
/// Returns the results of all batches in order, with the same bits on every rank and for any number
/// of ranks. Collective.
std::vector<float> evaluation_pass(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                   const data::ImageTransformOptions& transform,
                                   const EvaluationWork& work, const dist::World& world,
                                   int64_t values, bool per_image, const JudgeBatch& judge);

}  // namespace tessera::train
