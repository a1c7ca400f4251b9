// Multiplies 16-bit tiles on tensor cores (mma.sync), and copies these tiles through shared memory
// into registers (cp.async, ldmatrix). Needs compute capability 8.0 or later. In a build with
// emulated CUDA, emulated/include's version of this file does the same in plain loops.
//
// In c (16, 8) += a (16, 16) b (16, 8), lane l of a warp holds these values, with g = l / 4 and
// q = l % 4:
//   a[0] = a(g, 2q)   a[1] = a(g + 8, 2q)   a[2] = a(g, 2q + 8)   a[3] = a(g + 8, 2q + 8)
//   b[0] = b(2q, g)   b[1] = b(2q + 8, g)
//   c[0] = c(g, 2q)   c[1] = c(g, 2q + 1)   c[2] = c(g + 8, 2q)   c[3] = c(g + 8, 2q + 1)
// Each a[i] and b[i] holds two values. The low half is the value named above. The high half is that
// value's neighbour along the summed dimension: a(g, 2q + 1) in a[0], b(2q + 1, g) in b[0]. So two
// results c0 and c1 can be rounded and packed as the operand `a` of another product. c0 is the left
// half of this (16, 16) operand, and c1 is the right half:
//   a[0] = pack(c0[0], c0[1])  a[1] = pack(c0[2], c0[3])  a[2] = pack(c1[0], c1[1])  ...
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "core/half.h"

// TESSERA_UNROLL must precede every loop over an array in registers: the array stays in registers
// only if every index is a constant. TESSERA_NO_UNROLL precedes a loop that must not be unrolled.
#define TESSERA_UNROLL _Pragma("unroll")
#define TESSERA_NO_UNROLL _Pragma("unroll 1")

namespace tessera::cuda {

/// A 32-bit address in shared memory. `+` adds bytes.
class SharedAddress {
 public:
  __device__ explicit SharedAddress(const void* shared)
      : value_(static_cast<uint32_t>(__cvta_generic_to_shared(shared))) {}
  __device__ SharedAddress operator+(uint32_t bytes) const {
    SharedAddress result = *this;
    result.value_ += bytes;
    return result;
  }
  __device__ uint32_t value() const { return value_; }

 private:
  uint32_t value_;
};

/// c += a b for the whole warp, in the layout that the comment at the top of this file shows.
/// Products are exact; their sum is f32, in the hardware's order, which is the same in every run.
template <class T>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    static_assert(std::is_same_v<T, Float16>);
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Loads four matrices of 8 x 8 16-bit values for the whole warp. Lane l gives the address of one
/// row, 16 aligned bytes: row l % 8 of matrix l / 8. With g and q as in the comment at the top of
/// this file, r[i] holds element (g, 2q) of matrix i in its low half and (g, 2q + 1) in its high
/// half.
__device__ inline void load_matrices(uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.value()));
}

/// Like load_matrices, but transposes each matrix: r[i] holds element (2q, g) of matrix i in its
/// low half and (2q + 1, g) in its high half.
__device__ inline void load_matrices_transposed(uint32_t (&r)[4], SharedAddress row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(row.value()));
}

/// Starts a copy of 16 bytes from global to shared memory. Both addresses must be multiples of 16.
/// If `wanted` is false, writes zeros and reads nothing. This thread sees the bytes after
/// wait_for_copies. The other threads of the block see the bytes after a later barrier.
__device__ inline void copy_async_16(SharedAddress to, const void* from, bool wanted) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;\n" ::"r"(to.value()),
               "l"(__cvta_generic_to_global(from)), "r"(wanted ? 16 : 0)
               : "memory");
}
/// Like copy_async_16, for 4 bytes at addresses that are multiples of 4.
__device__ inline void copy_async_4(SharedAddress to, const void* from, bool wanted) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(to.value()),
               "l"(__cvta_generic_to_global(from)), "r"(wanted ? 4 : 0)
               : "memory");
}
/// Makes a group of all copies that this thread has started since its previous group.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
/// Waits until at most the last `pending` groups of this thread are still in flight.
template <int pending>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(pending) : "memory");
}

/// Rounds both values to T, to the nearest with ties to even, and puts them into one register.
template <class T>
__device__ inline uint32_t pack(float low, float high) {
  uint32_t result;
  if constexpr (std::is_same_v<T, BFloat16>) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;\n" : "=r"(result) : "f"(high), "f"(low));
  } else {
    static_assert(std::is_same_v<T, Float16>);
    asm("cvt.rn.f16x2.f32 %0, %1, %2;\n" : "=r"(result) : "f"(high), "f"(low));
  }
  return result;
}

}  // namespace tessera::cuda
