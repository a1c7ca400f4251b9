// Which cuBLASLt algorithm a product uses on CUDA: the one that a table of measurements names for
// it, or else the first proposal of cuBLASLt's heuristic. The application tune measures and writes
// such a table; train_gpt --tuned reads it. A build without CUDA has no products, and every call
// throws.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "core/context.h"

namespace tessera::cuda {

/// Everything that the choice of an algorithm depends on, for `batch` products c (m, n) = a (m, k)
/// b (k, n).
struct ProductShape {
  /// A matrix whose lines (rows, or columns if `transposed`) begin `stride` elements apart.
  /// `alignment` is its address's: a power of two up to 256, in bytes.
  struct Matrix {
    int64_t stride = 0;
    int64_t batch_stride = 0;
    bool transposed = false;
    int64_t alignment = 256;
    auto operator<=>(const Matrix&) const = default;
  };

  int64_t batch = 1;
  int64_t m = 0;
  int64_t n = 0;
  int64_t k = 0;
  Matrix a, b, c;  // c is never transposed
  DType dtype = DType::f32;
  DType c_dtype = DType::f32;
  int64_t bias_alignment = 0;  // 0: no bias
  auto operator<=>(const ProductShape&) const = default;
};

/// The bytes of a cublasLtMatmulAlgo_t. They may be stored, for use with the same version of
/// cuBLASLt.
using AlgorithmBytes = std::array<uint64_t, 8>;

struct TunedProduct {
  ProductShape shape;
  AlgorithmBytes algorithm = {};
};

/// The version of cuBLASLt, 130100 for 13.1.0.
int64_t product_library_version();

/// Every shape of a product that this process has computed on the device.
std::vector<ProductShape> computed_products(int device);

struct MeasuredProduct {
  TunedProduct fastest;
  double fastest_us = 0;
  double first_us = 0;  // of the heuristic's first proposal
  int proposals = 0;
};
/// Times cuBLASLt's proposals for a product, on random values. The proposals meet the same
/// conditions as without tuning, so each has the same bits in every run. The host waits.
MeasuredProduct measure_product(const Context& context, const ProductShape& shape);

/// Makes these products use these algorithms from now on; others use the heuristic's first
/// proposal. Throws, and changes nothing, if cuBLASLt refuses an algorithm for its product, or if
/// its order of additions may differ from run to run.
void use_tuned_products(int device, const std::vector<TunedProduct>& products);

}  // namespace tessera::cuda
