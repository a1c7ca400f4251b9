// Saves weights alone while a run goes on, beside the file that is written at its end:
//
//   out/model.safetensors                    at the end, by the program (train/weights.h)
//   out/step-000000500/model.safetensors     after each so many steps
//   out/best/model.safetensors               of the best evaluation so far
//
// Each has a folder of its own, because a model may have other files beside its weights. A save
// that fails is a warning and a line of the log; the run goes on.
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

/// "out/step-000000500/model.safetensors" and "out/best/model.safetensors" for
/// "out/model.safetensors".
std::string step_weights_path(const std::string& path, int64_t step);
std::string best_weights_path(const std::string& path);

class WeightSaves {
 public:
  /// Opens a file of the weights as they are after so many updates, on rank 0.
  using Open = std::function<WeightsSink(const std::string& path, int64_t updates)>;

  /// World, optimizer and log must outlive it. `best` is the best evaluation that a checkpoint
  /// knows of; it is dropped, with a warning, if its file is missing. Collective.
  WeightSaves(WeightSaveOptions options, const dist::World& world, optim::ZeroOptimizer& optimizer,
              RunLog& log, Open open, std::optional<BestEvaluation> best);

  /// True if anything may be saved after `done` steps; `evaluated`: the last of them is evaluated.
  bool due(int64_t done, bool evaluated) const;
  /// Saves the weights if they are the best so far. Returns true if they are and were written. If
  /// they could not be written, the earlier file and its score stay. Collective.
  bool keep_best(int64_t done, int64_t updates, const std::optional<Score>& score);
  /// Saves the weights if a save is due after this step. Collective.
  void after_step(int64_t done, int64_t updates);

  const std::optional<BestEvaluation>& best() const { return best_; }
  /// How often parameters were gathered for a save, failed saves included.
  int64_t count() const { return count_; }

 private:
  /// Saves the weights. Returns why that failed, or an empty text, the same on every rank.
  /// Collective.
  std::string save(const std::string& path, int64_t updates);
  void report_failure(int64_t done, const std::string& path, const std::string& why);

  WeightSaveOptions options_;
  const dist::World& world_;
  optim::ZeroOptimizer& optimizer_;
  RunLog& log_;
  Open open_;
  std::optional<BestEvaluation> best_;
  int64_t count_ = 0;
};

}  // namespace tessera::train
