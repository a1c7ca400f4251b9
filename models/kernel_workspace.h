// What kernels that several models use take of the workspace, to the byte, on either device. A GPU
// must be there: what its products take cuBLASLt says.
#pragma once

#include <cstdint>

#include "core/context.h"

namespace tessera::models {

/// ceil(items / size)
inline int64_t pieces(int64_t items, int64_t size) { return (items + size - 1) / size; }

/// Whether the device's kernels can be asked.
bool can_be_asked(Device device);

/// A matrix of known alignment lies by its distance from memory that is aligned for anything.
inline void* at(int64_t bytes) { return reinterpret_cast<void*>(static_cast<intptr_t>(bytes)); }
inline constexpr int64_t aligned = 256;

/// The gradient of a linear layer's bias: sums over the rows.
int64_t bias_gradient_workspace(Device device, int64_t rows, int64_t channels);
/// The mean of the rows' losses, and any sum of so many elements.
int64_t mean_workspace(int64_t rows);
/// A linear layer whose weight is stored as [out, in]; with its gradients in training.
struct LinearSizes {
  int64_t rows, in, out;
  bool bias = true;
};
int64_t linear_workspace(const Context& context, DType dtype, const LinearSizes& sizes,
                         bool training);

}  // namespace tessera::models
