// Tensors in pinned host memory, which a GPU copies from or to without the host waiting.
#pragma once

#include "core/memory.h"
#include "core/tensor.h"

namespace tessera {

/// An uninitialised tensor in pinned memory. Throws in a build without CUDA.
inline Tensor pinned_tensor(const Shape& shape, DType dtype, Category category) {
  Tensor result = Tensor::unallocated(shape, dtype);
  result.attach(allocate_pinned(result.bytes(), category), 0);
  return result;
}

}  // namespace tessera
