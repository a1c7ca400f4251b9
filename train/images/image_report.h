// Logs a classifier's predictions for the validation images, so that a report can show them: the
// confusion matrix, and the wrong predictions with the highest probabilities.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "train/images/image_evaluation.h"
#include "train/report/run_log.h"

namespace tessera::train {

/// Evaluates the model on `set`, and writes the lines "confusion" and "mistakes" (docs/formats.md)
/// to the log of rank 0. If an image has a score that is NaN or +infinity, or if all its scores are
/// -infinity, prints a warning instead. Collective.
void log_predictions(nn::Module& model, const std::shared_ptr<const data::ImageSet>& set,
                     const data::ImageTransformOptions& transform,
                     const std::vector<std::string>& class_names, const EvaluationWork& work,
                     const dist::World& world, RunLog& log);

}  // namespace tessera::train
