// How linear_cross_entropy lays out its logits: how far their rows lie apart, and how many rows it
// computes at once.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device.h"

namespace tessera::ops {

/// Elements from one row of logits to the next, at least the vocabulary: a multiple of 64, so that
/// every row begins at 16 bytes in any dtype. At GPT-2's 50,257 words rows without padding would
/// leave cuBLASLt's fast kernels out.
inline int64_t logits_stride(int64_t vocabulary) {
  constexpr int64_t multiple = 64;
  return (vocabulary + multiple - 1) / multiple * multiple;
}

/// Rows of a chunk: as many as fit 64 MiB of f32 logits, at least one. That is enough for products
/// at full speed on a CPU. A GPU wants at least 8,192, so that it is not starved by launches.
inline int64_t logits_chunk_rows(int64_t vocabulary, Device device) {
  constexpr int64_t budget_bytes = int64_t{64} << 20;
  const int64_t row_bytes = std::max<int64_t>(1, logits_stride(vocabulary)) * 4;
  return std::max<int64_t>(device.is_cpu() ? 1 : 8192, budget_bytes / row_bytes);
}

}  // namespace tessera::ops
