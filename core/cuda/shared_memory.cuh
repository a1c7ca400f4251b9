// Dynamic shared memory, which a launch asks for with LaunchShape::shared_bytes. It has a file of
// its own because only nvcc understands the declaration: builds with emulated CUDA find
// emulated/include/core/cuda/shared_memory.cuh in its place.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// Returns the launch's dynamic shared memory, 16-byte aligned. It is one block: every call in a
/// kernel returns its beginning, whatever T is.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ uint4 launch_shared_memory[];
  return reinterpret_cast<T*>(launch_shared_memory);
}

}  // namespace tessera::cuda
