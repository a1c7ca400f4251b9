// Matrix products on CUDA by cuBLASLt. blas_lt_library.cpp describes products to cuBLASLt and
// chooses algorithms.
//
// A product uses the first algorithm that cuBLASLt proposes for its sizes, strides, dtypes and
// alignments, unless a table of tuned algorithms (core/product_tuning.h) names another algorithm.
// Later calls reuse the choice. A product therefore has the same bits in every call, and on every
// rank with the same version of cuBLASLt, kind of GPU and table of tuned algorithms.
#include "core/product.h"

#include <algorithm>

#include "core/cuda/blas_lt_library.h"
#include "core/cuda/check.h"

namespace tessera::cuda {
namespace {

/// Computes a product with k = 0 as a product of zeros with k = 1. cuBLASLt then overwrites c or
/// adds to c, with or without a bias, as for any other product.
void add_no_terms(const Context& context, ProductArgs args) {
  if (args.accumulate && !args.bias) return;
  const Tensor zeros = context.workspace({std::max(args.m, args.n)}, args.dtype);
  TESSERA_CUDA(cudaMemsetAsync(zeros.raw(), 0, static_cast<size_t>(zeros.bytes()),
                               static_cast<cudaStream_t>(context.stream)));
  args.k = 1;
  args.a = {zeros.raw(), 1};
  args.b = {zeros.raw(), args.n};
  multiply(context, args);
}

}  // namespace

void multiply(const Context& context, const ProductArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (args.k == 0) return add_no_terms(context, args);
  const Product product = product_of(args);
  Library& library = library_of(context.device.index);
  Descriptors descriptors = describe(product);
  const Algorithm algorithm = library.algorithm_for(product, descriptors);
  library.multiply(context, product, descriptors, algorithm, args.accumulate);
}

int64_t product_workspace_bytes(const Context& context, const ProductArgs& args) {
  const Product product = product_of(args);
  Descriptors descriptors = describe(product);
  return library_of(context.device.index).algorithm_for(product, descriptors).workspace_bytes;
}

}  // namespace tessera::cuda
