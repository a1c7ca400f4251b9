// Predicts, to the byte, the workspace of kernels that several models use, on the CPU and on CUDA.
// For CUDA the GPU must be in this machine, because cuBLASLt reports the workspace of matrix
// products only for such a GPU.
#pragma once

#include <cstdint>

#include "core/context.h"

namespace tessera::models {

/// Returns ceil(items / size).
inline int64_t pieces(int64_t items, int64_t size) { return (items + size - 1) / size; }

/// True if the workspace of the device's kernels can be queried. This holds for the CPU and for
/// every GPU in this machine.
bool can_be_queried(Device device);

/// Returns a pointer whose address is `bytes`. A query of a product's workspace takes such a
/// pointer in place of memory. The query checks the pointer's alignment and whether it is null, but
/// never dereferences it. Multiples of `aligned` are aligned for any access.
inline void* at(int64_t bytes) { return reinterpret_cast<void*>(static_cast<intptr_t>(bytes)); }
inline constexpr int64_t aligned = 256;

/// Returns the bytes for the gradient of a linear layer's bias: a sum over `rows` rows.
int64_t bias_gradient_workspace(Device device, int64_t rows, int64_t channels);
/// Returns the bytes for the mean of `rows` losses, or for any other sum of `rows` elements.
int64_t mean_workspace(int64_t rows);
/// A linear layer whose weight is stored as [out, in].
struct LinearSizes {
  int64_t rows, in, out;
  bool bias = true;
};
/// Returns the peak bytes of a linear layer, including its gradients if `training` is true.
int64_t linear_workspace(const Context& context, DType dtype, const LinearSizes& sizes,
                         bool training);

}  // namespace tessera::models
