// How much memory the operations of a GPT take in a training step, before it runs: the peaks of the
// ledger's activations and workspace, to the byte.
//
//   const GptMemory memory = gpt_training_memory(config, DType::bf16, 12, 1024);  // (B, T)
//
// The formula is a list of what is alive, in the order of the step: each tensor begins and ends
// where the model's code has it. It shares nothing with the run but the sizes of scratch memory
// that oneDNN and attention ask for, which depend on the processor and the number of threads.
#pragma once

#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "models/gpt/gpt.h"

namespace tessera::models {

struct GptMemory {
  int64_t activations = 0;  // peak bytes; with the tokens and targets of the micro-batch
  /// Peak bytes; absent for a GPU that cannot be used here, whose cuBLASLt nobody can ask.
  std::optional<int64_t> workspace = std::nullopt;
};

/// Of forward and backward of micro-batches of `sequences` sequences of `tokens` tokens each, for
/// parameters of `dtype`, on `device`, with this process's number of threads. Dropout is on.
GptMemory gpt_training_memory(const GptConfig& config, DType dtype, int64_t sequences,
                              int64_t tokens, Device device = default_device());
/// Of a loss alone, as in evaluation, without dropout.
GptMemory gpt_evaluation_memory(const GptConfig& config, DType dtype, int64_t sequences,
                                int64_t tokens, Device device = default_device());

}  // namespace tessera::models
