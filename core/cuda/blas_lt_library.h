// Products in cuBLASLt's terms, and their algorithms. Only core/cuda/blas_lt.cpp and
// core/cuda/product_tuning.cpp use this file; other files include core/product.h.
#pragma once

#include <cublasLt.h>

#include <map>
#include <mutex>
#include <vector>

#include "core/product.h"
#include "core/product_tuning.h"

// Throws an Error with the text of the call if the call fails.
#define TESSERA_CUBLAS(call) ::tessera::cuda::check_cublas((call), #call)

namespace tessera::cuda {

void check_cublas(cublasStatus_t status, const char* call);

// A matrix as cuBLASLt sees it, column-major: `columns` columns of `rows` elements. The columns
// begin `stride` elements apart.
//
// cuBLASLt sees the row-major matrix c as c^T. So it computes c^T = b^T a^T: its first operand is
// b, and its second operand is a. Its m is the n of ProductArgs, and its n is the m of ProductArgs.
// It adds the bias to each column of c^T, which is a row of c.
//
// The product needs both operands transposed. cuBLASLt sees a row-major operand (column_stride 1)
// as already transposed, so `transpose` is false. cuBLASLt sees a column-major operand
// (row_stride 1) as it is, so cuBLASLt must transpose this operand, and `transpose` is true.
struct Operand {
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;
  int64_t batch_stride = 0;
  bool transpose = false;
  const void* data = nullptr;
};

/// A product in cuBLASLt's terms.
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
/// Returns a product with the shape's sizes and strides, but without memory. Its addresses only
/// have the shape's alignments and must not be read. Throws for strides and dtypes that no product
/// can have.
Product product_of(const ProductShape& shape);

/// cuBLASLt's descriptors of a product. They own no memory, so no call has to release them.
struct Descriptors {
  cublasLtMatmulDescOpaque_t operation;
  cublasLtMatrixLayoutOpaque_t first, second, result;
};

Descriptors describe(const Product& product);

struct Algorithm {
  cublasLtMatmulAlgo_t algorithm = {};
  int64_t workspace_bytes = 0;
};

/// cuBLASLt's handle for one device, and the chosen algorithm of each product. Safe to use from any
/// thread.
class Library {
 public:
  Library();

  /// Returns the product's stored algorithm, which may come from use(). If none is stored, stores
  /// and returns cuBLASLt's first proposal. Throws if cuBLASLt proposes no algorithm.
  Algorithm algorithm_for(const Product& product, Descriptors& descriptors);

  /// Returns at most `most` of cuBLASLt's proposals, the best guess first. May return none.
  std::vector<Algorithm> proposals(const Product& product, Descriptors& descriptors,
                                   int most) const;

  /// Returns the algorithm with these bytes, which come from a table of tuned algorithms. Throws if
  /// cuBLASLt refuses the algorithm for the product. Also throws if the algorithm
  ///  - splits k, unless it adds the partial sums in f32 and in a fixed order,
  ///  - needs more than 32 MiB of workspace, or
  ///  - needs better aligned addresses than the shape has.
  Algorithm checked(const ProductShape& shape, const AlgorithmBytes& bytes) const;

  /// Stores an algorithm for each shape in `algorithms`. Later products of a shape use the shape's
  /// algorithm.
  void use(const std::map<ProductShape, Algorithm>& algorithms);
  /// Returns the shapes of all products that have a stored algorithm.
  std::vector<ProductShape> shapes();

  /// Computes c = a b + bias, or c += a b + bias if `accumulate` is true, on the context's stream.
  void multiply(const Context& context, const Product& product, Descriptors& descriptors,
                const Algorithm& algorithm, bool accumulate) const;

 private:
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<ProductShape, Algorithm> algorithms_;
};

Library& library_of(int device);

}  // namespace tessera::cuda
