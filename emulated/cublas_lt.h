// Describes matrix products. emulated/cublas_lt.cpp checks a product and passes it to the
// arithmetic in emulated/cublas_lt_product.cpp. Matrices are column-major, as in cuBLASLt.
#pragma once

#include <cstdint>

#include <cublasLt.h>

namespace emulated::cublas_lt {

/// The contents of a cublasLtMatrixLayoutOpaque_t.
struct Layout {
  static constexpr uint64_t expected_mark = 0x6C61796F7574;
  uint64_t mark = expected_mark;
  cudaDataType_t type = CUDA_R_32F;
  int32_t batch = 1;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // between columns
  int64_t batch_stride = 0;

  bool operator==(const Layout&) const = default;
};

/// The contents of a cublasLtMatmulDescOpaque_t.
struct Operation {
  static constexpr uint64_t expected_mark = 0x6F706572;
  uint64_t mark = expected_mark;
  int32_t transpose_a = CUBLAS_OP_N;
  int32_t transpose_b = CUBLAS_OP_N;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;

  bool adds_bias() const { return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
};

struct Problem {
  Operation operation;
  Layout a, b, c, d;
  int64_t m, n, k;
};

struct Addresses {
  const void *a, *b, *c;
  void* d;
};

/// The order in which an algorithm adds the k terms of a sum. The terms are divided into `splits`
/// parts: into fewer if k is small, and into more if parts would exceed most_terms terms
/// (emulated/cublas_lt_sums.h). The sums of the parts are added in order. If `rotation` is 0,
/// the sum of a part begins at the part's first term. Otherwise `rotation` chooses a later term at
/// which the sum begins. After the part's last term, the sum adds the terms that it has skipped.
struct Order {
  int32_t splits = 1;
  uint32_t rotation = 0;
};

/// Computes D = alpha op(A) op(B) + beta C, and then the epilogue. C is not read if beta is 0.
void compute(const Problem& problem, const Addresses& addresses, Order order, float alpha,
             float beta);

}  // namespace emulated::cublas_lt
