// Computes the loss of a model on tokens that were held out from training.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/tokens/token_file.h"
#include "dist/bootstrap.h"
#include "models/gpt/gpt.h"

namespace tessera::train {

struct EvaluationOptions {
  int64_t context = 0;    // tokens per window
  int64_t batches = 0;    // number of batches; 0: all windows that fit without overlap
  int64_t sequences = 1;  // windows per batch
};

/// The windows of an evaluation: evenly spread over the range of tokens, or one after the other
/// from the range's beginning if `batches` is 0. Evaluations of a range with equal options use the
/// same windows. The starts of the windows are computed rather than stored, because a long range
/// has many windows.
class EvaluationWindows {
 public:
  /// Throws InputError if the range is too short for one window, and Error for invalid options.
  EvaluationWindows(const data::TokenRange& range, const EvaluationOptions& options);

  int64_t count() const { return count_; }
  int64_t batches() const { return (count_ - 1) / options_.sequences + 1; }
  int64_t start(int64_t window) const;
  /// Returns the number of windows of a batch. The last batch may have fewer windows than the
  /// others.
  int64_t windows_of(int64_t batch) const;
  /// Returns the positions at which the windows of a batch begin.
  std::vector<int64_t> starts_of(int64_t batch) const;

 private:
  EvaluationOptions options_;
  int64_t count_ = 0;
  int64_t last_ = 0;  // the last position at which a window may begin
};

/// Returns a model's mean loss over tokens (B, T) and their targets (B, T).
using TokenLoss = std::function<Tensor(const Tensor& tokens, const Tensor& targets)>;

/// Returns the mean loss in nats per token. The batches are divided among the ranks, and every rank
/// runs the same number of forward passes. Every rank gets the same bits, for any number of ranks.
/// Throws as EvaluationWindows does. Collective. `loss` runs with `model` in evaluation mode.
/// Afterwards the model and its children have their earlier modes again. For a GPT the windows are
/// as long as the model's context, and options.context is ignored.
float evaluate(nn::Module& model, const TokenLoss& loss, const data::TokenRange& range,
               const EvaluationOptions& options, const dist::World& world);
float evaluate(models::Gpt& model, const data::TokenRange& range, EvaluationOptions options,
               const dist::World& world);

}  // namespace tessera::train
