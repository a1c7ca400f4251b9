// Saves weights, without optimizer state, during a run. The saves are in folders beside the file
// that is written when the run ends:
//
//   out/model.safetensors                    at the end, by the program (train/weights.h)
//   out/step-000000500/model.safetensors     every WeightSaveOptions::every steps
//   out/best/model.safetensors               weights of the best evaluation so far
//
// Each save has a separate folder, because a model may have other files beside its weights. If a
// save fails, the run continues, with a warning to the user and a line in the log. If no later save
// of the same kind succeeds, the run ends with an error after its last step. A resumed run also
// ends with an error if the best weights were replaced by other weights before the resume, and no
// later evaluation is better.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"
#include "train/report/run_log.h"
#include "train/score.h"
#include "train/training_run.h"
#include "train/weights.h"

namespace tessera::train {

/// Returns "out/step-000000500/model.safetensors" for "out/model.safetensors" and step 500.
std::string step_weights_path(const std::string& path, int64_t step);
/// Returns "out/best/model.safetensors" for "out/model.safetensors".
std::string best_weights_path(const std::string& path);

class WeightSaves {
 public:
  /// Opens a file for the weights after `updates` updates. Called on rank 0 only.
  using Open = std::function<WeightsSink(const std::string& path, int64_t updates)>;

  /// World, optimizer and log must outlive this object. `best` is the best evaluation that the
  /// resumed checkpoint records, or nullopt. If WeightSaveOptions::best is set:
  ///   - If `best` has measured something else (WeightSaveOptions::evaluated), warns and drops it.
  ///   - Otherwise compares the file of the best weights with BestEvaluation::file. If the file is
  ///     missing, warns and drops the recorded evaluation. If the file has other weights, warns and
  ///     keeps the evaluation, so that only a better one replaces the file. Until then, failure()
  ///     says that the weights are lost.
  ///   - If BestEvaluation::file is nullopt, the weights count as missing only if their folder is
  ///     empty or missing.
  /// Throws on rank 0 if the file cannot be read. Collective.
  WeightSaves(WeightSaveOptions options, const dist::World& world, optim::ZeroOptimizer& optimizer,
              RunLog& log, Open open, std::optional<BestEvaluation> best);

  /// True if after_step() saves the weights of step `done`, or if keep_best() may save them.
  /// keep_best() may do so only if the model is evaluated after this step (`evaluated`).
  bool due(int64_t done, bool evaluated) const;
  /// Saves the weights if WeightSaveOptions::best is set and `score` is the best so far. Returns
  /// true if the weights were written. If writing fails, the earlier file and its score are kept.
  /// Collective.
  bool keep_best(int64_t done, int64_t updates, const std::optional<Score>& score);
  /// Saves the weights if `done` is a multiple of WeightSaveOptions::every. Collective.
  void after_step(int64_t done, int64_t updates);

  const std::optional<BestEvaluation>& best() const { return best_; }
  /// The number of saves, including failed saves.
  int64_t count() const { return count_; }
  /// Returns an error message if the last save by keep_best() or the last save by after_step() has
  /// failed, or if the weights of best() were lost before the resume. Otherwise returns an empty
  /// text. All ranks get the same text.
  std::string failure() const { return best_failure_.empty() ? step_failure_ : best_failure_; }

 private:
  /// Saves the weights. Returns the reason of a failure, or an empty text. Every rank gets the same
  /// text. Collective.
  std::string save(const std::string& path, int64_t updates);
  /// Reports a failed save to the log and the user, and removes the save's folder if it is empty.
  /// Returns the message for failure().
  std::string report_failure(int64_t done, const std::string& path, const std::string& why);

  WeightSaveOptions options_;
  const dist::World& world_;
  optim::ZeroOptimizer& optimizer_;
  RunLog& log_;
  Open open_;
  std::optional<BestEvaluation> best_;
  int64_t count_ = 0;
  // Set if the last save by keep_best() has failed, or if the constructor has found other weights
  // than those of best_ and no save by keep_best() has succeeded since. Otherwise empty.
  std::string best_failure_;
  std::string step_failure_;  // set if the last save by after_step() has failed, else empty
};

}  // namespace tessera::train
