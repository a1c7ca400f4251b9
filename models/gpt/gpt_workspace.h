// Predicts the scratch memory of a micro-batch's kernels, for models/gpt/gpt_memory.h.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>

#include "core/device.h"
#include "core/dtype.h"
#include "core/ops/linear_cross_entropy.h"
#include "models/gpt/gpt.h"

namespace tessera::models {

/// A micro-batch's sizes. `n` is the number of its rows, one for each token. `chunk` is the number
/// of rows of logits that the output head computes at a time. `columns` is the number of columns of
/// logits that the output head's products compute, padding included. `element`, `row`, `x`,
/// `logsumexp`, `padded_weight` and `logits` are in bytes. nn/transformer.h explains the letters B,
/// T, C and H.
struct GptSizes {
  GptConfig config;
  DType dtype;
  int64_t sequences, tokens;
  Device device;
  int64_t n = sequences * tokens;  // rows, B T
  int64_t element = dtype_size(dtype);
  int64_t row = 4 * n;                     // one f32 for each row
  int64_t x = n * config.width * element;  // (B, T, C)
  int64_t logsumexp = row * config.heads;  // kept by attention: (B, H, T)
  int64_t chunk =
      std::min(n, ops::logits_chunk_rows(config.vocab, dtype, device, config.loss_chunk_rows));
  bool gradient_in_forward = ops::gradient_in_forward(dtype, device);
  bool keeps_logits = chunk == n && !gradient_in_forward;  // true: logits are kept until backward
  int64_t stride = ops::logits_stride(config.vocab);       // between rows of logits, in elements
  int64_t columns = ops::logits_columns(config.vocab, dtype, device);
  int64_t padded_weight = columns == config.vocab ? 0 : columns * config.width * element;
  DType logits_dtype = ops::logits_dtype(dtype, device);
  int64_t logits = chunk * stride * dtype_size(logits_dtype);
  bool dropout = config.dropout > 0;
};

/// Returns the peak bytes of forward and backward if `training` is true, else the peak bytes of
/// forward alone, as in an evaluation. Returns nullopt if this machine does not have the GPU
/// `sizes.device`, because cuBLASLt reports the workspace of products only on a machine with the
/// GPU.
std::optional<int64_t> gpt_workspace(const GptSizes& sizes, bool training);

}  // namespace tessera::models
