// The emulated twin of the CUDA file core/cuda/mma.cuh. The functions have the contract of that
// file, and are written as plain loops. Fragments have the tensor cores' layout, and kernels must
// wait for their asynchronous copies. Tests on the CPU therefore cover a kernel's tiling, indices,
// masks and waits.
//
// Differences from the CUDA file:
//   - mma adds the products in ascending order of the summed index;
//   - the start of an asynchronous copy fills the destination with bytes 0xFF, which are NaN. The
//     copy is made only when the thread waits for the copy's group;
//   - blocks must be one-dimensional.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <type_traits>
#include <vector>

#include "core/half.h"

#define TESSERA_UNROLL
#define TESSERA_NO_UNROLL

namespace tessera::cuda {

class SharedAddress {
 public:
  __device__ explicit SharedAddress(const void* shared)
      : value_(const_cast<char*>(static_cast<const char*>(shared))) {}
  __device__ SharedAddress operator+(uint32_t bytes) const { return SharedAddress(value_ + bytes); }
  __device__ char* value() const { return value_; }

 private:
  char* value_;
};

namespace detail {

inline uint32_t halves(uint16_t low, uint16_t high) {
  return low | static_cast<uint32_t>(high) << 16;
}

/// A lane's operands of mma.
struct Product {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

/// Computes mma for all 32 lanes; T is BFloat16 or Float16. Defined in emulated/tensor_cores.cpp.
/// For speed, that file is never compiled with sanitizers, even if the rest of the build is.
template <class T>
void multiply(Product* const* lanes);

/// A lane's result `r` and address `row` in load_matrices and load_matrices_transposed.
struct Rows {
  uint32_t* r;
  const char* row;
};

template <bool transposed>
void load(Rows* const* lanes) {
  for (int i = 0; i < 4; ++i) {
    uint16_t matrix[8][8];
    for (int row = 0; row < 8; ++row) {
      std::memcpy(matrix[row], lanes[8 * i + row]->row, sizeof(matrix[row]));
    }
    for (int l = 0; l < 32; ++l) {
      const int g = l / 4;
      const int q = l % 4;
      lanes[l]->r[i] = transposed ? halves(matrix[2 * q][g], matrix[2 * q + 1][g])
                                  : halves(matrix[g][2 * q], matrix[g][2 * q + 1]);
    }
  }
}

inline void check_aligned(const void* address, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    ::emulated::fail("an access through core/cuda/mma.cuh is not aligned");
  }
}

struct Copy {
  char* to;
  const void* from;  // nullptr: the copy writes zeros
  size_t bytes;
};

/// The pending asynchronous copies of one CUDA thread, in groups. New copies join the last group
/// until commit_copies() starts another group. If `shared` or `block` changes, a new block has
/// begun, and the pending copies are dropped.
struct Copies {
  std::deque<std::vector<Copy>> groups;
  const void* shared = nullptr;  // the shared memory of the block that made the copies
  std::array<unsigned, 3> block = {};  // that block's blockIdx

  static Copies& of_this_thread() {
    static thread_local std::vector<Copies> threads(1024);
    Copies& result = threads[threadIdx.x];
    const void* const shared = ::emulated::dynamic_shared_memory();
    const std::array<unsigned, 3> block = {blockIdx.x, blockIdx.y, blockIdx.z};
    if (result.groups.empty() || result.shared != shared || result.block != block) {
      result.groups.assign(1, {});
      result.shared = shared;
      result.block = block;
    }
    return result;
  }
};

inline void start_copy(SharedAddress to, const void* from, bool wanted, size_t bytes) {
  check_aligned(to.value(), bytes);
  check_aligned(from, bytes);
  // On a GPU, the copied bytes may arrive at any time from now on. A thread that still reads the
  // earlier bytes is wrong, and gets NaN here, so that a test notices the mistake.
  std::memset(to.value(), 0xFF, bytes);
  Copies::of_this_thread().groups.back().push_back({to.value(), wanted ? from : nullptr, bytes});
}

}  // namespace detail

template <class T>
__device__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  detail::Product mine{c, a, {b0, b1}};
  ::emulated::warp_operation<detail::multiply<T>>("mma", mine);
}

__device__ inline void load_matrices(uint32_t (&r)[4], SharedAddress row) {
  detail::check_aligned(row.value(), 16);
  detail::Rows mine{r, row.value()};
  ::emulated::warp_operation<detail::load<false>>("load_matrices", mine);
}

__device__ inline void load_matrices_transposed(uint32_t (&r)[4], SharedAddress row) {
  detail::check_aligned(row.value(), 16);
  detail::Rows mine{r, row.value()};
  ::emulated::warp_operation<detail::load<true>>("load_matrices_transposed", mine);
}

__device__ inline void copy_async_16(SharedAddress to, const void* from, bool wanted) {
  detail::start_copy(to, from, wanted, 16);
}
__device__ inline void copy_async_4(SharedAddress to, const void* from, bool wanted) {
  detail::start_copy(to, from, wanted, 4);
}
__device__ inline void commit_copies() { detail::Copies::of_this_thread().groups.emplace_back(); }

template <int pending>
__device__ void wait_for_copies() {
  auto& groups = detail::Copies::of_this_thread().groups;
  for (; groups.size() > size_t{pending} + 1; groups.pop_front()) {
    for (const detail::Copy& copy : groups.front()) {
      if (copy.from != nullptr) {
        std::memcpy(copy.to, copy.from, copy.bytes);
      } else {
        std::memset(copy.to, 0, copy.bytes);
      }
    }
  }
}

template <class T>
__device__ uint32_t pack(float low, float high) {
  return detail::halves(T(low).bits, T(high).bits);
}

}  // namespace tessera::cuda
