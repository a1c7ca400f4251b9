#include "core/cuda/blas_lt.h"

#include <algorithm>

#include "core/cuda/blas_lt_library.h"
#include "core/cuda/check.h"

namespace tessera::cuda {
namespace {

/// A product over k = 0 as one over k = 1 of zeros, so that the library applies what follows it.
void add_no_terms(const Context& context, LtArgs args) {
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

void multiply(const Context& context, const LtArgs& args) {
  if (args.batch == 0 || args.m == 0 || args.n == 0) return;
  if (args.k == 0) return add_no_terms(context, args);
  const Product product = product_of(args);
  Library& library = library_of(context.device.index);
  Descriptors descriptors = describe(product);
  const Algorithm algorithm = library.algorithm_for(product, descriptors);
  library.multiply(context, product, descriptors, algorithm, args.accumulate);
}

int64_t workspace_bytes(const Context& context, const LtArgs& args) {
  const Product product = product_of(args);
  Descriptors descriptors = describe(product);
  return library_of(context.device.index).algorithm_for(product, descriptors).workspace_bytes;
}

}  // namespace tessera::cuda
