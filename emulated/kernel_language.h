// The language of kernels: qualifiers, vector types, indices, barriers, warp operations, atomics.
// The emulated <cuda_runtime.h> includes this file and says what is covered.
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <source_location>
#include <type_traits>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __grid_constant__
// An OS thread runs one block at a time, so a thread_local variable serves as shared memory of the
// block. An `alignas` must come before __shared__.
#define __shared__ static thread_local

struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
constexpr float2 make_float2(float x, float y) { return {x, y}; }
constexpr float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
constexpr int2 make_int2(int x, int y) { return {x, y}; }
constexpr int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
constexpr uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
constexpr uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
  constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z) {}
  constexpr operator uint3() const { return {x, y, z}; }
};

// The indices of the CUDA thread that runs on the calling OS thread. Without `constinit`, each
// access would first check if the variable is initialised.
extern constinit thread_local uint3 threadIdx;
extern constinit thread_local uint3 blockIdx;
extern constinit thread_local dim3 blockDim;
extern constinit thread_local dim3 gridDim;
inline constexpr int warpSize = 32;

namespace emulated {

using Site = std::source_location;

/// Ends the running launch with cudaErrorLaunchFailure. A device function calls fail() if its
/// caller breaks the function's contract. Local variables of the block's threads are not destroyed.
/// Outside of a launch, throws std::logic_error.
[[noreturn]] void fail(const char* message);

/// Returns the launch's dynamic shared memory, 16-byte aligned; null if the launch has none.
void* dynamic_shared_memory();

void block_barrier(Site site);

/// Waits until all lanes that are in `mask` and in the block have made this call with the same
/// name, mask, compute and site. The last lane to arrive runs compute(lanes). lanes[i] is the
/// `mine` of lane i, or null if lane i is not in the mask or not in the block. `name` and `compute`
/// are compared by address.
void warp_meeting(const char* name, unsigned mask, void* mine, void (*compute)(void* const* lanes),
                  Site site);

/// Runs an operation of a whole warp. Each lane passes a struct with its operands and results:
///
///   struct Sum { float value; float total; };
///   inline void sum_lanes(Sum* const* lanes) { ... }             // lanes[0] ... lanes[31]
///   Sum mine{x, 0};  emulated::warp_operation<sum_lanes>("warp_sum", mine);  use(mine.total);
///
/// All 32 lanes must exist and take part; otherwise the launch fails.
template <auto compute, class Lane>
void warp_operation(const char* name, Lane& mine, Site site = Site::current()) {
  const auto typed = [](void* const* lanes) {
    Lane* all[32];
    for (int i = 0; i < 32; ++i) {
      all[i] = static_cast<Lane*>(lanes[i]);
      if (!all[i]) {
        fail("an operation for whole warps was called in a warp of fewer than 32 threads");
      }
    }
    compute(all);
  };
  warp_meeting(name, 0xFFFFFFFFu, &mine, typed, site);
}

enum class Shuffle { index, up, down, butterfly };

/// Returns the bits that the source lane passed; all ones if the source lane does not take part.
uint64_t shuffle(Shuffle kind, unsigned mask, uint64_t bits, int argument, int width, Site site);

template <class T>
concept Shuffled = std::is_arithmetic_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

template <Shuffled T>
T shuffle_value(Shuffle kind, unsigned mask, T value, int argument, int width, Site site) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  bits = shuffle(kind, mask, bits, argument, width, site);
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

/// Returns a mask whose bit i is set if lane i is in `mask` and its predicate is true.
unsigned ballot(const char* name, unsigned mask, bool predicate, Site site);

template <class T>
concept Counted = std::same_as<T, int> || std::same_as<T, unsigned> ||
                  std::same_as<T, unsigned long long>;

}  // namespace emulated

inline void __syncthreads(emulated::Site site = emulated::Site::current()) {
  emulated::block_barrier(site);
}

inline void __syncwarp(unsigned mask = 0xFFFFFFFFu,
                       emulated::Site site = emulated::Site::current()) {
  emulated::warp_meeting("__syncwarp", mask, nullptr, [](void* const*) {}, site);
}

template <emulated::Shuffled T>
T __shfl_sync(unsigned mask, T value, int lane, int width = warpSize,
              emulated::Site site = emulated::Site::current()) {
  return emulated::shuffle_value(emulated::Shuffle::index, mask, value, lane, width, site);
}
template <emulated::Shuffled T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                 emulated::Site site = emulated::Site::current()) {
  return emulated::shuffle_value(emulated::Shuffle::up, mask, value, int(delta), width, site);
}
template <emulated::Shuffled T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = warpSize,
                   emulated::Site site = emulated::Site::current()) {
  return emulated::shuffle_value(emulated::Shuffle::down, mask, value, int(delta), width, site);
}
template <emulated::Shuffled T>
T __shfl_xor_sync(unsigned mask, T value, int lane_mask, int width = warpSize,
                  emulated::Site site = emulated::Site::current()) {
  return emulated::shuffle_value(emulated::Shuffle::butterfly, mask, value, lane_mask, width, site);
}

inline unsigned __ballot_sync(unsigned mask, int predicate,
                              emulated::Site site = emulated::Site::current()) {
  return emulated::ballot("__ballot_sync", mask, predicate != 0, site);
}
inline int __any_sync(unsigned mask, int predicate,
                      emulated::Site site = emulated::Site::current()) {
  return emulated::ballot("__any_sync", mask, predicate != 0, site) != 0;
}
inline int __all_sync(unsigned mask, int predicate,
                      emulated::Site site = emulated::Site::current()) {
  return emulated::ballot("__all_sync", mask, predicate == 0, site) == 0;
}

inline void __threadfence() { std::atomic_thread_fence(std::memory_order_seq_cst); }
inline void __threadfence_block() { __threadfence(); }
inline void __threadfence_system() { __threadfence(); }

// Atomics return the old value. Floating-point atomics are missing on purpose: on a GPU the order
// of their additions, and so the bits of the sum, may differ from run to run.
template <emulated::Counted T>
T atomicAdd(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_add(value);
}
template <emulated::Counted T>
T atomicExch(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).exchange(value);
}
template <emulated::Counted T>
T atomicCAS(T* address, std::type_identity_t<T> expected, std::type_identity_t<T> value) {
  std::atomic_ref<T>(*address).compare_exchange_strong(expected, value);
  return expected;
}
template <emulated::Counted T>
T atomicMin(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> target(*address);
  T before = target.load();
  while (value < before && !target.compare_exchange_weak(before, value)) {
  }
  return before;
}
template <emulated::Counted T>
T atomicMax(T* address, std::type_identity_t<T> value) {
  std::atomic_ref<T> target(*address);
  T before = target.load();
  while (before < value && !target.compare_exchange_weak(before, value)) {
  }
  return before;
}
template <emulated::Counted T>
T atomicOr(T* address, std::type_identity_t<T> value) {
  return std::atomic_ref<T>(*address).fetch_or(value);
}

template <class T>
T __ldg(const T* address) {
  return *address;
}
inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(int bits) { return __builtin_ffs(bits); }
inline int __clz(int bits) { return std::countl_zero(unsigned(bits)); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((uint64_t{a} * b) >> 32); }
inline unsigned __float_as_uint(float value) { return std::bit_cast<unsigned>(value); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline int __float_as_int(float value) { return std::bit_cast<int>(value); }
inline float __int_as_float(int bits) { return std::bit_cast<float>(bits); }

// CUDA also has min and max outside of namespace std.
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
  requires std::is_arithmetic_v<T>
constexpr T max(T a, T b) {
  return a < b ? b : a;
}
