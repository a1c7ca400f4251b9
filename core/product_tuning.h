// Which of cuBLASLt's algorithms a product takes on CUDA: the first of the library's heuristic,
// or, where a table of measured ones names the product, that one. The application tune measures,
// train_gpt --tuned reads. A build without CUDA has no products, and says so.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "core/context.h"

namespace tessera::cuda {

/// What an algorithm depends on: `batch` products c (m, n) = a (m, k) b (k, n).
struct ProductShape {
  /// Lines of `stride` elements: rows, or where `transposed`, columns. `alignment` of its address:
  /// a power of two up to 256, in bytes.
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

/// A cublasLtMatmulAlgo_t. The library lets it be stored, for the same version of the library.
using AlgorithmBytes = std::array<uint64_t, 8>;

struct TunedProduct {
  ProductShape shape;
  AlgorithmBytes algorithm = {};
};

/// cuBLASLt's, as 130100 for 13.1.0.
int64_t product_library_version();

/// Every shape of a product that this process has computed on the device.
std::vector<ProductShape> computed_products(int device);

struct MeasuredProduct {
  TunedProduct fastest;
  double fastest_us = 0;
  double first_us = 0;  // of the heuristic's first
  int proposals = 0;
};
/// Times the algorithms that the library proposes for products of random values, under the same
/// conditions as without tuning: the same bits in every run. The host waits.
MeasuredProduct measure_product(const Context& context, const ProductShape& shape);

/// From now on these products take these algorithms, and others the heuristic's first. Throws,
/// and changes nothing, where the library refuses an algorithm for its product, or where it may
/// add in an order that differs from run to run.
void use_tuned_products(int device, const std::vector<TunedProduct>& products);

}  // namespace tessera::cuda
