// Tensors in pinned host memory. The host need not wait for copies between a GPU and pinned memory
// (cuda::copy).
#pragma once

#include "core/memory.h"
#include "core/tensor.h"

namespace tessera {

/// Returns an uninitialised tensor in pinned memory. In a build without CUDA, throws unless the
/// tensor is empty.
inline Tensor pinned_tensor(const Shape& shape, DType dtype, Category category) {
  Tensor result = Tensor::unallocated(shape, dtype);
  result.attach(allocate_pinned(result.bytes(), category), 0);
  return result;
}

}  // namespace tessera
