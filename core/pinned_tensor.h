// Tensors on the host that a GPU copies from or to while the host goes on.
#pragma once

#include "core/memory.h"
#include "core/tensor.h"

namespace tessera {

/// Without contents, in pinned memory. Throws where there is no CUDA.
inline Tensor pinned_tensor(const Shape& shape, DType dtype, Category category) {
  Tensor result = Tensor::unallocated(shape, dtype);
  result.attach(allocate_pinned(result.bytes(), category), 0);
  return result;
}

}  // namespace tessera
