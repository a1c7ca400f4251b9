// Matrix products on CUDA: the one place that knows cuBLASLt.
//
//   cuda::multiply(context, {.m = R, .n = out, .k = in,
//                            .a = {x, in}, .b = {weight, 1, in}, .c = {y, out}, .bias = bias});
//
// As in core/gemm.h a matrix is a pointer and strides. Every product is summed in f32 (tf32 is off)
// and rounded once, into c.
//
// The algorithm is the first that the library proposes for a product's sizes, strides, dtypes and
// alignments; it is kept, so that a product has the same bits in every call, and on every rank with
// the same library and kind of GPU.
#pragma once

#include <cstdint>

#include "core/context.h"

namespace tessera::cuda {

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

/// c = a b + bias, or c += a b + bias.
struct LtArgs {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ConstMatrix a = {};          // (m, k)
  ConstMatrix b = {};          // (k, n)
  MutableMatrix c = {};        // (m, n)
  const void* bias = nullptr;  // (n), added to each row; only where c has the operands' dtype
  bool accumulate = false;     // add to c, once per element, after the product's own f32 sum
  DType dtype = DType::f32;    // of a, b and bias
  DType c_dtype = DType::f32;  // of c: f32, or that of the operands
};

/// Sizes of 0 are fine: a sum over no terms is 0. Operands may lie anywhere, c beside them; what
/// the algorithm needs is taken from the context's workspace. Throws where the library has no
/// algorithm, and for what it refuses.
void multiply(const Context& context, const LtArgs& args);

/// What multiply(context, args) takes of the workspace, sizes being above 0. Of addresses only the
/// alignment counts; none has any. Throws as multiply does, and where there is no device to ask.
int64_t workspace_bytes(const Context& context, const LtArgs& args);

}  // namespace tessera::cuda
