// Matrix products, on either device: by oneDNN on the CPU, by cuBLASLt on CUDA.
//
//   kernels::multiply(context, {.m = R, .n = out, .k = in, .a = {x, in}, .b = {weight, 1, in},
//                               .c = {y, out}, .bias = bias});
//
// A matrix is a pointer and strides, so that slices of a packed tensor and transposes need no
// copies. Every product is summed in f32 (on CUDA tf32 is off) and rounded once, into c. Its bits
// depend on its sizes and strides, on the CPU also on the number of threads, and on CUDA also on
// alignments and the library.
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

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
struct ProductArgs {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ConstMatrix a = {};          // (m, k)
  ConstMatrix b = {};          // (k, n)
  MutableMatrix c = {};        // (m, n)
  const void* bias = nullptr;  // (n), added to each row; on CUDA only where c has its dtype
  bool accumulate = false;     // add to c, once per element, after the product's own fp32 sum
  DType dtype = DType::f32;    // of a, b and bias
  DType c_dtype = DType::f32;  // f32, or the operands' dtype
};

// multiply: sizes may be 0; a sum over no terms is 0. Operands may overlap each other, but not c.
// Throws for products that the device's library refuses.
//
// product_workspace_bytes: the most workspace that multiply(context, args) takes when called at
// this point. Sizes are above 0. Addresses do not matter, except whether there is a bias and, on
// CUDA, their alignments; a null address counts as fully aligned. Throws as multiply does, and if
// there is no such device to query.
#define TESSERA_PRODUCT                                           \
  void multiply(const Context& context, const ProductArgs& args); \
  int64_t product_workspace_bytes(const Context& context, const ProductArgs& args);
namespace cpu {
TESSERA_PRODUCT
}
namespace cuda {
TESSERA_PRODUCT
}
#undef TESSERA_PRODUCT

namespace kernels {
inline void multiply(const Context& context, const ProductArgs& args) {
  TESSERA_DISPATCH(multiply, context, args);
}
inline int64_t product_workspace_bytes(const Context& context, const ProductArgs& args) {
  return TESSERA_DISPATCH(product_workspace_bytes, context, args);
}
}  // namespace kernels

}  // namespace tessera
