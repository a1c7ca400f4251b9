// The workspace half of models/gpt/gpt_memory.h: the scratch memory of a micro-batch's kernels.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/ops/linear_cross_entropy.h"
#include "models/gpt/gpt.h"

namespace tessera::models {

/// A micro-batch's sizes in bytes, by the letters of models/gpt/gpt.h and nn/transformer.h.
struct GptSizes {
  GptConfig config;
  DType dtype;
  int64_t sequences, tokens;
  Device device;
  int64_t n = sequences * tokens;                        // rows
  int64_t element = dtype_size(dtype);
  int64_t row = 4 * n;                                   // an f32 a row
  int64_t x = n * config.width * element;                // (B, T, C)
  int64_t logsumexp = row * config.heads;                // of attention
  int64_t chunk = std::min(n, ops::logits_chunk_rows(config.vocab, device, config.loss_chunk_rows));
  bool keeps_logits = chunk == n;
  int64_t stride = ops::logits_stride(config.vocab);     // of the rows of logits, in elements
  int64_t logits = 4 * chunk * stride;
  bool dropout = config.dropout > 0;
};

/// Peak bytes on the sizes' device, of forward and backward or of a loss alone. Nothing where that
/// is a GPU that cannot be used: there is no saying what cuBLASLt's products take but by asking it.
std::optional<int64_t> gpt_workspace(const GptSizes& sizes, bool training);

}  // namespace tessera::models
