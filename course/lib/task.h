// The training task of lessons 3 to 8: a small GPT whose token table is tied to its output head.
// The sequences depend only on (step, sample), so the data is the same for any number of ranks.
#pragma once

#include <cstdint>
#include <functional>

#include "core/micro_batch.h"
#include "models/gpt/gpt.h"

namespace course {

using namespace tessera;

/// Returns a micro-batch's mean loss.
using Loss = std::function<Tensor(const MicroBatch&)>;

class Task {
 public:
  /// `dtype` is the dtype of the parameters: f32, bf16 or f16.
  explicit Task(DType dtype = DType::f32);

  models::Gpt& model() { return model_; }
  Tensor loss(const MicroBatch& micro);
  Loss losses() {
    return [this](const MicroBatch& micro) { return loss(micro); };
  }

 private:
  models::Gpt model_;
};

/// Returns the micro-batch of `rank` in micro-step j of a step. A rank without a micro-batch of its
/// own repeats the last micro-batch, and must not contribute.
MicroBatch micro_batch_of(int64_t step, const Batch& batch, int64_t j, int64_t rank, int64_t ranks);

}  // namespace course
