// The layout of the logits of linear_cross_entropy: their dtype, the stride of a row, and the
// number of rows that are computed together (a chunk).
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/device.h"
#include "core/dtype.h"

namespace tessera::ops {

/// Returns the stride of a row of logits in elements: the vocabulary rounded up to a multiple of
/// 64. This aligns every row to 16 bytes in any dtype. Without padding, GPT-2's vocabulary of
/// 50,257 would rule out cuBLASLt's fast kernels.
inline int64_t logits_stride(int64_t vocabulary) {
  constexpr int64_t multiple = 64;
  return (vocabulary + multiple - 1) / multiple * multiple;
}

/// Returns the number of columns of logits that the matrix products compute: `vocabulary` or, for
/// 16-bit operands on a GPU, logits_stride(vocabulary). In the second case the products read a
/// weight that is padded with rows of zeros to this number of rows. Aligned rows of logits are not
/// enough for cuBLASLt's fast kernels, because cuBLASLt also looks at the sizes: on an H200, the
/// product for the logits reaches 95 TFLOP/s with 50,257 columns and 718 TFLOP/s with 50,304.
inline int64_t logits_columns(int64_t vocabulary, DType dtype, Device device) {
  return device.is_cpu() || dtype_size(dtype) != 2 ? vocabulary : logits_stride(vocabulary);
}

/// True if the forward of a recorded loss also computes the gradients of x and the weight, chunk by
/// chunk. The backward then only multiplies these gradients by the gradient of the loss, and need
/// not compute the logits again. f16 is excluded: without the loss scale, which only the backward
/// knows, the gradients of f16 logits would underflow.
inline bool gradient_in_forward(DType dtype, Device device) {
  return !device.is_cpu() && dtype == DType::bf16;
}

/// Returns the dtype of the logits if x and the weight have dtype `dtype`.
inline DType logits_dtype(DType dtype, Device device) {
  return gradient_in_forward(dtype, device) ? dtype : DType::f32;
}

/// Returns the number of rows in a chunk: `asked` if it is not 0. Otherwise the number depends on
/// the device, the vocabulary and the dtype of the logits, and is at least one:
///   on a CPU   as many rows as fit into 64 MiB, enough for products at full speed;
///   on a GPU   8,192 rows of f32 logits or 16,384 rows of bf16 logits, so that the GPU does not
///              wait for launches; fewer if these rows need more than 2 GiB; more if more rows fit
///              into 64 MiB.
inline int64_t logits_chunk_rows(int64_t vocabulary, DType dtype, Device device,
                                 int64_t asked = 0) {
  if (asked > 0) return asked;
  constexpr int64_t enough_bytes = int64_t{64} << 20;
  constexpr int64_t most_bytes = int64_t{2} << 30;
  const int64_t logit_bytes = dtype_size(logits_dtype(dtype, device));
  const int64_t row_bytes = std::max<int64_t>(1, logits_stride(vocabulary)) * logit_bytes;
  const int64_t wanted =
      device.is_cpu() ? 1 : std::min<int64_t>(32768 / logit_bytes, most_bytes / row_bytes);
  return std::max<int64_t>({1, wanted, enough_bytes / row_bytes});
}

}  // namespace tessera::ops
