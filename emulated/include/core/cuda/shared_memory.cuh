// The emulated twin of the CUDA file core/cuda/shared_memory.cuh.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// Returns the launch's dynamic shared memory, 16-byte aligned; null if the launch has none.
template <class T>
__device__ T* dynamic_shared() {
  return static_cast<T*>(emulated::dynamic_shared_memory());
}

}  // namespace tessera::cuda
