// Dynamic shared memory; LaunchShape::shared_bytes is its size. Only nvcc understands the
// declaration with `extern __shared__`, so builds with emulated CUDA replace this file with
// emulated/include/core/cuda/shared_memory.cuh.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// Returns the launch's dynamic shared memory, aligned to 16 bytes. Every call in a kernel returns
/// the same address, whatever T is.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ uint4 launch_shared_memory[];
  return reinterpret_cast<T*>(launch_shared_memory);
}

}  // namespace tessera::cuda
