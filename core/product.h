// Matrix products. oneDNN computes them on the CPU, cuBLASLt on CUDA.
//
//   kernels::multiply(context, {.m = R, .n = out, .k = in, .a = {x, in}, .b = {weight, 1, in},
//                               .c = {y, out}, .bias = bias});
//
// A matrix is a pointer and strides, so slices of a packed tensor and transposes need no copies.
// Every product is summed in f32 (on CUDA tf32 is off) and rounded into c. For some sizes, such as
// odd numbers, cuBLASLt may also round the product before it adds the bias or the previous c. The
// bits of a product depend on
//   - its sizes, strides and dtypes,
//   - on the CPU, the number of threads, the kind of CPU, and the version and settings of oneDNN
//     (core/cpu/onednn_version.h),
//   - on CUDA, the alignments of its addresses, the version of cuBLASLt, the kind of GPU, and the
//     table of tuned algorithms (core/product_tuning.h).
#pragma once

#include <cstdint>

#include "core/dispatch.h"

namespace tessera {

/// Element (i, j) of matrix l of a batch is data[l * batch_stride + i * row_stride + j *
/// column_stride]. row_stride or column_stride must be 1.
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

/// c = a b + bias, or c += a b + bias if `accumulate`.
struct ProductArgs {
  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  ConstMatrix a = {};          // (m, k)
  ConstMatrix b = {};          // (k, n)
  MutableMatrix c = {};        // (m, n)
  const void* bias = nullptr;  // (n), added to each row; on CUDA a bias requires c_dtype == dtype
  /// If true, adds the product to c. Each element's f32 sum is complete before the sum is added to
  /// c. Exception: on the CPU, if k is above 8192 and c is f32, the sum is added to c in parts.
  bool accumulate = false;
  DType dtype = DType::f32;    // of a, b and bias
  DType c_dtype = DType::f32;  // f32, or the operands' dtype
};

// multiply: computes c. Sizes may be 0; if k is 0, the product a b is zero. a, b and bias may
// overlap each other, but not c. Throws for products that the device's library refuses.
//
// product_workspace_bytes: returns how many bytes of workspace the next multiply(context, args)
// needs at most. Sizes must be above 0. No memory is accessed, so addresses may be null. A null
// bias means that there is no bias. On CUDA the result depends on the alignments of the addresses,
// and a null address counts as a multiple of 256 bytes. Throws as multiply does.
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
