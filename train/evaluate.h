// The loss on data that the model does not train on.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "data/tokens/token_file.h"
#include "dist/bootstrap.h"
#include "models/gpt/gpt.h"

namespace tessera::train {

struct EvaluationOptions {
  int64_t context = 0;    // tokens of a window
  int64_t batches = 0;    // 0: the whole range, in windows that do not overlap
  int64_t sequences = 1;  // of a batch
};

/// The windows of an evaluation: always the same, evenly spread. They are counted rather than
/// listed, because a long range has many.
class EvaluationWindows {
 public:
  /// Throws InputError for a range that is shorter than a window.
  EvaluationWindows(const data::TokenRange& range, const EvaluationOptions& options);

  int64_t count() const { return count_; }
  int64_t batches() const { return (count_ + options_.sequences - 1) / options_.sequences; }
  int64_t start(int64_t window) const;
  /// The number of windows of a batch (the last batch may have fewer), and where they begin.
  int64_t windows_of(int64_t batch) const;
  std::vector<int64_t> starts_of(int64_t batch) const;

 private:
  EvaluationOptions options_;
  int64_t count_ = 0;
  int64_t last_ = 0;  // the last position at which a window may begin
};

/// Returns a model's mean loss over tokens (B, T) and their targets (B, T).
using TokenLoss = std::function<Tensor(const Tensor& tokens, const Tensor& targets)>;

/// Mean loss in nats per token; a GPT's windows are its context. The ranks share the batches. Every
/// rank gets the same bits, which do not depend on the number of ranks, and runs the same number of
/// forwards. Throws InputError for a range that is shorter than a window. Collective.
float evaluate(nn::Module& model, const TokenLoss& loss, const data::TokenRange& range,
               const EvaluationOptions& options, const dist::World& world);
float evaluate(models::Gpt& model, const data::TokenRange& range, EvaluationOptions options,
               const dist::World& world);

}  // namespace tessera::train
