// General matrix products on the CPU.
//
//   cpu::gemm({.m = R, .n = out, .k = in,
//              .a = {x, in}, .b = {weight, 1, in}, .c = {y, out}, .bias = bias});
//
// A matrix is a pointer and strides, so that slices of a packed tensor and transposes need no
// copies. A product's bits depend on its sizes, strides and threads, never on its addresses.
//
// Every product is summed in f32 and rounded once, into c. bf16 operands go to oneDNN as they are
// where the CPU multiplies bf16; elsewhere, and for f16, they are widened to f32 first.
#pragma once

#include <cstdint>

#include "core/device.h"
#include "core/dtype.h"

namespace tessera::cpu {

/// Element (i, j) of matrix l: data[l * batch_stride + i * row_stride + j * column_stride]. One of
/// the two inner strides is 1.
struct ConstMatrix {
  const void* data = nullptr;
  int64_t row_stride = 0;
  int64_t column_stride = 1;
  int64_t batch_stride = 0;  // 0: one matrix for the whole batch
};
struct MutableMatrix {
  void* data = nullptr;
  int64_t row_stride = 0;
  int64_t batch_stride = 0;
};

struct GemmArgs {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ConstMatrix a = {};          // (m, k)
  ConstMatrix b = {};          // (k, n)
  MutableMatrix c = {};        // (m, n)
  const void* bias = nullptr;  // (n), added to each row
  bool accumulate = false;     // add to c, once per element, after the product's own fp32 sum
  DType dtype = DType::f32;    // of a, b and bias
  DType c_dtype = DType::f32;  // f32, or that of the operands
  int threads = 0;             // 0: thread_count(); inside a parallel region always 1
  Device device = {};          // whose workspace is used
  void* workspace = nullptr;   // gemm_workspace_bytes() on a cache line; nullptr: allocated
};

/// c = a b + bias, or c += a b + bias. Sizes of 0 are fine: a sum over no terms is 0.
void gemm(const GemmArgs& args);

/// The same through f32 copies of the operands: how gemm multiplies what has no fast product.
void widened_gemm(const GemmArgs& args);

/// Whether the CPU multiplies this dtype as it is. The answer never changes within a process.
bool has_fast_gemm(DType dtype);

/// What gemm(args) holds at most of the workspace category, when called from here: the scratchpad
/// of the library and widened operands. Addresses do not matter, but whether there is a bias does.
int64_t gemm_workspace_bytes(const GemmArgs& args);

}  // namespace tessera::cpu
