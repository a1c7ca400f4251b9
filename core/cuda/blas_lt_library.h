// Products in cuBLASLt's terms, and the algorithms that they take. What core/cuda/blas_lt.cpp and
// core/cuda/product_tuning.cpp share; others include core/product.h.
#pragma once

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <vector>

#include "core/product.h"
#include "core/product_tuning.h"

// Throws for anything but success, with the text of the call.
#define TESSERA_CUBLAS(call) ::tessera::cuda::check_cublas((call), #call)

namespace tessera::cuda {

void check_cublas(cublasStatus_t status, const char* call);

// The library's matrices are column-major: line after line of `rows` elements, `stride` apart. A
// row-major matrix read so is its transpose. Therefore the library is asked for c^T = b^T a^T: its
// first operand is b, its second a, its m and n are our n and m, and `bias`, which it adds to
// each column, is added to each of our rows. An operand with column_stride 1 already is the
// transpose that is wanted; one with row_stride 1 must be transposed.
struct Operand {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transpose = false;
  const void* data = nullptr;
};

/// A product in the library's terms.
struct Product {
  Operand first, second, result;
  int64_t batch = 1;
  DType dtype = DType::f32;
  DType c_dtype = DType::f32;
  const void* bias = nullptr;

  cublasLtEpilogue_t epilogue() const {
    return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  }
  ProductShape shape() const;
};

Product product_of(const ProductArgs& args);
/// Without memory: its addresses are only as aligned as the shape says. Throws for strides and
/// dtypes that no product has.
Product product_of(const ProductShape& shape);

/// The library's descriptors of a product: plain values, so that each call has its own.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t first, second, result;
};

Descriptors describe(const Product& product);

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
};

/// The library's handle for one device, and the algorithms that products take. Any thread may ask.
class Library {
 public:
  Library();

  /// The one that a table names, or else the first proposal, which is kept. Throws where there is
  /// none.
  Algorithm algorithm_for(const Product& product, Descriptors& descriptors);

  /// At most `most`, the library's best guess first; none where it has none.
  std::vector<Algorithm> proposals(const Product& product, Descriptors& descriptors,
                                   int most) const;

  /// An algorithm from a table, if the library takes it for the product and its order of additions
  /// is one that we allow; throws otherwise.
  Algorithm checked(const ProductShape& shape, const AlgorithmBytes& bytes) const;

  void use(const std::map<ProductShape, Algorithm>& algorithms);
  std::vector<ProductShape> shapes();

  /// c = a b + bias, or c += a b + bias, in the context's stream.
  void multiply(const Context& context, const Product& product, Descriptors& descriptors,
                const Algorithm& algorithm, bool accumulate) const;

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<ProductShape, Algorithm> algorithms_;
};

Library& library_of(int device);

}  // namespace tessera::cuda
