// How much memory the operations of a recommender take in a training step, before it runs: the
// peaks of the ledger's activations and workspace, to the byte.
//
//   const RecommenderMemory memory = recommender_training_memory(
//       {.name = "mf", .users = 943, .items = 1682}, {.samples = 1024, .items = 1});
//
// The batch itself is not in it: whoever makes it keeps it (train/ratings/plan_ratings.h counts
// that). The formula walks through the model as its code does (models/memory_tape.h).
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/recommender/recommender_loss.h"

namespace tessera::models {

struct RecommenderMicroBatch {
  DType dtype = DType::f32;    // of parameters
  int64_t samples = 1;         // B
  int64_t items = 1;           // K
  bool shared_items = false;   // items (1, K), the same for all
  int64_t history_places = 0;  // of a batch, where the model reads histories
  RecommenderObjective objective = RecommenderObjective::rating;
  float l2 = 0;
  Device device = default_device();
};

struct RecommenderMemory {
  int64_t activations = 0;  // peak bytes, without the batch
  /// Peak bytes; absent for a GPU that cannot be used here, whose libraries nobody can ask.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Of loss = recommender_loss(model.score(input), ...), and then of backward(loss), with this
/// process's number of threads.
RecommenderMemory recommender_training_memory(const RecommenderConfig& config,
                                              const RecommenderMicroBatch& micro);
/// Of convert(model.score(input).scores, f32) without gradients.
RecommenderMemory recommender_evaluation_memory(const RecommenderConfig& config,
                                                const RecommenderMicroBatch& micro);

}  // namespace tessera::models
