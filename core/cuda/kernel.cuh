// For .cu files: launches of kernels, sums and maxima over warps and blocks, and 16-byte accesses.
// nvcc compiles this file. In a build with emulated CUDA, the host compiler compiles it against the
// headers in emulated/include.
//
//   launch(context, "scale", {blocks_for(packs, 256), 256}, scale_kernel<T>, y, x, packs, factor);
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <tuple>
#include <utility>

#include "core/context.h"
#include "core/cuda/check.h"
#include "core/cuda/shared_memory.cuh"
#include "core/half.h"

namespace tessera::cuda {

inline constexpr int warp_size = 32;
inline constexpr unsigned whole_warp = 0xffffffffu;

struct LaunchShape {
  dim3 grid;
  dim3 block;
  size_t shared_bytes = 0;  // size of dynamic_shared(), without the kernel's own shared arrays
};

inline cudaStream_t stream_of(const Context& context) {
  return static_cast<cudaStream_t>(context.stream);
}

/// Returns the number of blocks of a one-dimensional grid with `per_block` items for each block.
inline unsigned blocks_for(int64_t items, int64_t per_block) {
  const int64_t blocks = (items + per_block - 1) / per_block;
  TESSERA_CHECK(blocks <= std::numeric_limits<int32_t>::max(),
                "cuda: {} items at {} per block need more blocks than a grid can have", items,
                per_block);
  return static_cast<unsigned>(blocks);
}

/// Throws if the launch failed; otherwise calls finish_call (core/cuda/check.h).
void finish_launch(const Context& context, const char* name, cudaError_t error);

/// Starts `kernel` on the context's stream. Arguments are converted to the types of its parameters.
/// Throws an Error that contains `name` if CUDA refuses the launch.
template <class... Params, class... Args>
void launch(const Context& context, const char* name, LaunchShape shape,
            void (*kernel)(Params...), Args&&... args) {
  static_assert(sizeof...(Params) == sizeof...(Args), "one argument for each parameter");
  // Without this request, dynamic_shared() and the kernel's own arrays together are limited to
  // 48 KiB.
  if (shape.shared_bytes > 0) {
    const cudaError_t error =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(shape.shared_bytes));
    if (error != cudaSuccess) finish_launch(context, name, error);
  }
  std::tuple<Params...> values{static_cast<Params>(std::forward<Args>(args))...};
  std::apply(
      [&](Params&... value) {
        std::array<void*, sizeof...(Params) + 1> pointers{
            const_cast<void*>(static_cast<const void*>(&value))..., nullptr};
        finish_launch(context, name,
                      cudaLaunchKernel(kernel, shape.grid, shape.block, pointers.data(),
                                       shape.shared_bytes, stream_of(context)));
      },
      values);
}

/// 16 bytes of T, which a thread reads or writes in one access.
template <class T>
struct alignas(16) Pack {
  static constexpr int size = 16 / static_cast<int>(sizeof(T));
  T value[size];
};

/// True if an address may be read as Packs.
inline bool packable(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

/// Returns the sum over all lanes of a warp to every lane. All lanes must call this function. Adds
/// in butterfly order.
__device__ inline float warp_sum(float value) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value += __shfl_xor_sync(whole_warp, value, offset);
  }
  return value;
}
/// Returns the maximum over all lanes of a warp to every lane. All lanes must call this function.
__device__ inline float warp_max(float value) {
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(whole_warp, value, offset));
  }
  return value;
}

/// Returns the sum over all threads of a one-dimensional block to every thread. Adds in a fixed
/// order. `scratch` is shared memory for threads / 32 floats. A kernel must call __syncthreads()
/// before it uses `scratch` for something else, because other threads may still read `scratch`.
template <int threads>
__device__ inline float block_sum(float value, float* scratch) {
  static_assert(threads % warp_size == 0);
  constexpr int warps = threads / warp_size;
  value = warp_sum(value);
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // other threads may still read an earlier result from scratch
  if (thread % warp_size == 0) scratch[thread / warp_size] = value;
  __syncthreads();
  float total = scratch[0];
  for (int warp = 1; warp < warps; ++warp) total += scratch[warp];
  return total;
}
/// Returns the f64 sum over all threads of a one-dimensional block to every thread. A kernel may
/// call block_sum_once<threads> only once for each value of `threads`. A second call would use the
/// same shared memory, and could overwrite sums that other threads still read in the first call.
template <int threads>
__device__ inline double block_sum_once(double value) {
  static_assert(threads % warp_size == 0);
  __shared__ double warp_sums[threads / warp_size];
  const int thread = static_cast<int>(threadIdx.x);
  for (int offset = warp_size / 2; offset > 0; offset /= 2) {
    value += __shfl_down_sync(whole_warp, value, static_cast<unsigned>(offset));
  }
  if (thread % warp_size == 0) warp_sums[thread / warp_size] = value;
  __syncthreads();
  double total = 0;
  for (const double sum : warp_sums) total += sum;
  return total;
}
/// Returns the maximum over all threads of a block; otherwise like block_sum.
template <int threads>
__device__ inline float block_max(float value, float* scratch) {
  static_assert(threads % warp_size == 0);
  constexpr int warps = threads / warp_size;
  value = warp_max(value);
  const int thread = static_cast<int>(threadIdx.x);
  __syncthreads();  // other threads may still read an earlier result from scratch
  if (thread % warp_size == 0) scratch[thread / warp_size] = value;
  __syncthreads();
  float highest = scratch[0];
  for (int warp = 1; warp < warps; ++warp) highest = fmaxf(highest, scratch[warp]);
  return highest;
}

}  // namespace tessera::cuda
