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

/// Where the windows of an evaluation begin: always the same, evenly spread.
std::vector<int64_t> evaluation_starts(const data::TokenRange& range,
                                       const EvaluationOptions& options);

/// A model's mean loss over tokens (B, T) and the targets (B, T) behind them.
using TokenLoss = std::function<Tensor(const Tensor& tokens, const Tensor& targets)>;

/// Mean loss in nats a token; a GPT's windows are its context. The ranks share the batches, and
/// every rank gets the same bits, which do not depend on how many ranks there are. Throws
/// InputError for a range that is shorter than a window. Every rank runs as many forwards.
/// Collective.
float evaluate(nn::Module& model, const TokenLoss& loss, const data::TokenRange& range,
               const EvaluationOptions& options, const dist::World& world);
float evaluate(models::Gpt& model, const data::TokenRange& range, EvaluationOptions options,
               const dist::World& world);

}  // namespace tessera::train
