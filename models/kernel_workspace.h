// The workspace, to the byte, of kernels that several models use, on the CPU and on CUDA. A GPU
// must be there, since only its cuBLASLt can say what products take.
#pragma once

#include <cstdint>

#include "core/context.h"

namespace tessera::models {

/// ceil(items / size)
inline int64_t pieces(int64_t items, int64_t size) { return (items + size - 1) / size; }

/// True if the workspace of the device's kernels can be queried: for the CPU and any GPU that is
/// there.
bool can_be_asked(Device device);

/// Stands in for an address, of which only the alignment counts: `bytes` behind an address that is
/// aligned for anything, such as 0 or `aligned`.
inline void* at(int64_t bytes) { return reinterpret_cast<void*>(static_cast<intptr_t>(bytes)); }
inline constexpr int64_t aligned = 256;

/// Bytes for the gradient of a linear layer's bias, a sum over the rows.
int64_t bias_gradient_workspace(Device device, int64_t rows, int64_t channels);
/// Bytes for the mean of `rows` losses, or any other sum of so many elements.
int64_t mean_workspace(int64_t rows);
/// A linear layer whose weight is stored as [out, in].
struct LinearSizes {
  int64_t rows, in, out;
  bool bias = true;
};
/// Peak bytes of a linear layer; in training with its gradients.
int64_t linear_workspace(const Context& context, DType dtype, const LinearSizes& sizes,
                         bool training);

}  // namespace tessera::models
