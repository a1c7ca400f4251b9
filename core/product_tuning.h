// Chooses the cuBLASLt algorithm of each product on CUDA. If a table of measurements names an
// algorithm for a product, the product uses this algorithm. Other products use the first proposal
// of cuBLASLt's heuristic. The program `tune` makes the measurements and writes the table, and
// `train_gpt --tuned` reads the table. A new run of train_gpt without --tuned makes the
// measurements itself, unless --tune is off. In a build without CUDA every call throws.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <vector>

#include "core/context.h"

namespace tessera::cuda {

/// The properties of `batch` products c (m, n) = a (m, k) b (k, n) that decide their algorithm.
struct ProductShape {
  /// A matrix whose lines (rows, or columns if `transposed`) begin `stride` elements apart. Its
  /// address is a multiple of `alignment` bytes, a power of two up to 256.
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

/// The bytes of a cublasLtMatmulAlgo_t, valid only for the version of cuBLASLt that made them.
using AlgorithmBytes = std::array<uint64_t, 8>;

struct TunedProduct {
  ProductShape shape;
  AlgorithmBytes algorithm = {};
};

/// Returns the version of cuBLASLt, such as 130100 for 13.1.0.
int64_t product_library_version();

/// Returns the shapes of all products that have an algorithm on the device. A product gets an
/// algorithm when this process first computes the product, queries the size of its workspace, or
/// passes it to use_tuned_products.
std::vector<ProductShape> computed_products(int device);

struct MeasuredProduct {
  TunedProduct fastest;
  double fastest_us = 0;
  double first_us = 0;  // time of the heuristic's first proposal
  int proposals = 0;
};
/// Times cuBLASLt's proposals for a product, on random values. `fastest` is the fastest proposal if
/// it takes less than 98 % of the first proposal's time, or else the first proposal. If a proposal
/// splits k, it adds the partial sums in f32 and in a fixed order, because cuBLASLt is told to use
/// only this way. The host waits for the measurements. Throws if cuBLASLt proposes no algorithm.
MeasuredProduct measure_product(const Context& context, const ProductShape& shape);

/// Throws, as use_tuned_products does, if an algorithm in `products` cannot be used.
void check_tuned_products(int device, const std::vector<TunedProduct>& products);
/// After this call, each product in `products` uses the algorithm given with it. Every other
/// product keeps its algorithm, or gets the heuristic's first proposal when it first needs an
/// algorithm. Throws, and changes nothing, if an algorithm in `products`
///  - is refused by cuBLASLt for the product,
///  - splits k, unless it adds the partial sums in f32 and in a fixed order,
///  - takes more than 32 MiB of workspace, or
///  - needs better aligned addresses than the product has.
void use_tuned_products(int device, const std::vector<TunedProduct>& products);

}  // namespace tessera::cuda
