// The one place that knows oneDNN (versions 2 and 3): general matrix products on the CPU.
//
//   cpu::gemm({.m = R, .n = out, .k = in,
//              .a = {x, in}, .b = {weight, 1, in}, .c = {y, out}, .bias = bias});
//
// A matrix is a pointer and strides, so that slices of a packed tensor and transposes need no
// copies. A product's bits depend on its sizes, strides and threads, never on its addresses.
#pragma once

#include <cstdint>

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
  DType c_dtype = DType::f32;
  int threads = 0;             // 0: thread_count(); inside a parallel region always 1
};

/// c = a b + bias, or c += a b + bias. Sizes of 0 are fine: a sum over no terms is 0.
void gemm(const GemmArgs& args);

}  // namespace tessera::cpu
