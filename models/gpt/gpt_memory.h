// Predicts, before a training step runs, how much memory the operations of a GPT will take: the
// peaks of activations and workspace in the memory ledger (core/memory.h), to the byte.
//
//   const GptMemory memory = gpt_training_memory(config, DType::bf16, 12, 1024);  // (B, T)
//
// The prediction follows a step in the order of the model's code, and counts the bytes of the
// tensors that are alive. The prediction shares only two things with the model's code: the queries
// for the scratch memory of matrix products, and choices such as the sizes of attention tiles and
// of chunks of logits. The scratch memory depends on the processor. On a CPU it also depends on the
// number of threads.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/gpt/gpt.h"

namespace tessera::models {

struct GptMemory {
  int64_t activations = 0;  // peak bytes, including the micro-batch's tokens and targets
  /// Peak bytes; nullopt if the prediction is for a GPU that this machine does not have, because
  /// cuBLASLt reports the workspace of products only on a machine with the GPU.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Predicts the memory of one micro-batch's forward and backward. The micro-batch has `sequences`
/// sequences of `tokens` tokens each. Parameters have the dtype `dtype`. The prediction holds for
/// this process's number of threads. Dropout is applied as in the config.
GptMemory gpt_training_memory(const GptConfig& config, DType dtype, int64_t sequences,
                              int64_t tokens, Device device = default_device());
/// Predicts the memory of Gpt::loss without backward and without dropout, as in evaluation.
GptMemory gpt_evaluation_memory(const GptConfig& config, DType dtype, int64_t sequences,
                                int64_t tokens, Device device = default_device());

}  // namespace tessera::models
