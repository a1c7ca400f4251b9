// Predicts, before a training step runs, how much memory the operations of a recommender will take:
// the peaks of activations and workspace in the memory ledger (core/memory.h), to the byte.
//
//   const RecommenderMemory memory = recommender_training_memory(
//       {.name = "mf", .users = 943, .items = 1682}, {.samples = 1024, .items = 1});
//
// The batch itself is not counted here; train/ratings/plan_ratings.h counts it. The prediction
// replays the model's operations on a tape (models/memory_tape.h).
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/recommender/recommender_loss.h"

namespace tessera::models {

struct RecommenderMicroBatch {
  DType dtype = DType::f32;    // dtype of parameters
  int64_t samples = 1;         // B
  int64_t items = 1;           // K: items of each sample
  bool shared_items = false;   // true: items (1, K), shared by all samples
  int64_t history_places = 0;  // elements of RecommenderInput::history, if the model reads it
  RecommenderObjective objective = RecommenderObjective::rating;
  float l2 = 0;
  /// True if the embedding tables are row-sparse and no process has a whole embedding table. An
  /// evaluation then fetches the rows that it looks up.
  bool fetches = false;
  Device device = default_device();
};

struct RecommenderMemory {
  int64_t activations = 0;  // peak bytes, without the batch
  /// Peak bytes; nullopt if the micro-batch's device is a GPU that this machine does not have,
  /// because CUDA's libraries report their workspace only on a machine with the GPU.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Predicts the memory of loss = recommender_loss(model.score(input), ...), and then of
/// backward(loss), with this process's number of threads.
RecommenderMemory recommender_training_memory(const RecommenderConfig& config,
                                              const RecommenderMicroBatch& micro);
/// Predicts the memory of convert(model.score(input).scores, f32) without gradients.
RecommenderMemory recommender_evaluation_memory(const RecommenderConfig& config,
                                                const RecommenderMicroBatch& micro);

}  // namespace tessera::models
