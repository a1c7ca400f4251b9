// How linear_cross_entropy lays out its logits: the stride of their rows, and the number of rows
// that it computes at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device.h"

namespace tessera::ops {

/// Returns the number of elements from one row of logits to the next: the vocabulary rounded up to
/// a multiple of 64, so that every row is aligned to 16 bytes in any dtype. Without padding,
/// GPT-2's vocabulary of 50,257 would rule out cuBLASLt's fast kernels.
inline int64_t logits_stride(int64_t vocabulary) {
  constexpr int64_t multiple = 64;
  return (vocabulary + multiple - 1) / multiple * multiple;
}

/// Returns the number of rows in a chunk: `asked` if it is not 0. Otherwise the number depends on
/// the device, and is at least one:
///   on a CPU   as many rows of f32 logits as fit into 64 MiB, enough for products at full speed;
///   on a GPU   8,192 rows, so that the GPU does not wait for launches. Fewer if 8,192 rows need
///              more than 2 GiB; more if more fit into 64 MiB.
inline int64_t logits_chunk_rows(int64_t vocabulary, Device device, int64_t asked = 0) {
  if (asked > 0) return asked;
  constexpr int64_t enough_bytes = int64_t{64} << 20;
  constexpr int64_t most_bytes = int64_t{2} << 30;
  const int64_t row_bytes = std::max<int64_t>(1, logits_stride(vocabulary)) * 4;
  const int64_t wanted = device.is_cpu() ? 1 : std::min<int64_t>(8192, most_bytes / row_bytes);
  return std::max<int64_t>({1, wanted, enough_bytes / row_bytes});
}

}  // namespace tessera::ops
