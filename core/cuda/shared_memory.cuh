// The memory that a launch asks for with LaunchShape::shared_bytes. Apart from the rest of
// core/cuda because its declaration is one that only nvcc understands: builds with emulated CUDA
// find emulated/include/core/cuda/shared_memory.cuh in its place.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// The launch's dynamic shared memory, 16-byte aligned. One block of bytes: every call in a kernel
/// gives its beginning, whatever T.
template <class T>
__device__ T* dynamic_shared() {
  extern __shared__ uint4 launch_shared_memory[];
  return reinterpret_cast<T*>(launch_shared_memory);
}

}  // namespace tessera::cuda
