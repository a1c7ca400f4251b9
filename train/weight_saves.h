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

  /// World, optimizer and log must outlive it. `best` is what a checkpoint knows of the run so far;
  /// it is forgotten, with a warning, where its file is not there. Collective.
  WeightSaves(WeightSaveOptions options, const dist::World& world, optim::ZeroOptimizer& optimizer,
              RunLog& log, Open open, std::optional<BestEvaluation> best);

  /// Whether anything may be saved after so many steps, of which the last may be evaluated.
  bool due(int64_t done, bool evaluated) const;
  /// Keeps the weights if they are the best so far. Returns whether they are, and are written: an
  /// earlier file stays where they could not be, and what it scored counts. Collective.
  bool keep_best(int64_t done, int64_t updates, const std::optional<Score>& score);
  /// Saves the weights if it is their turn. Collective.
  void after_step(int64_t done, int64_t updates);

  const std::optional<BestEvaluation>& best() const { return best_; }
  /// How often parameters were gathered for a save, also for one that failed.
  int64_t count() const { return count_; }

 private:
  /// Why it could not be done; empty where it could. The same on every rank. Collective.
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
