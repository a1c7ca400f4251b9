// How linear_cross_entropy cuts its rows into chunks.
#pragma once

#include <algorithm>
#include <cstdint>

namespace tessera::ops {

/// f32 logits of one chunk. Enough rows for a product at full speed, and far less than a model.
inline constexpr int64_t logits_chunk_bytes = int64_t{64} << 20;

/// Rows of a chunk: as many as fit the budget, at least one.
inline int64_t logits_chunk_rows(int64_t vocabulary) {
  const int64_t row_bytes = std::max<int64_t>(1, vocabulary) * 4;
  return std::max<int64_t>(1, logits_chunk_bytes / row_bytes);
}

}  // namespace tessera::ops
