// matmul on CUDA: cuBLASLt's. It has no kernel of its own.
#include "core/cuda/blas_lt.h"
#include "core/ops/matmul.h"

namespace tessera::cuda {

namespace {
ConstMatrix operand(const Tensor& x, bool transpose) {
  const int64_t columns = x.size(-1);
  const int64_t batch_stride = x.rank() == 2 ? 0 : x.size(-2) * columns;
  return transpose ? ConstMatrix{x.raw(), 1, columns, batch_stride}
                   : ConstMatrix{x.raw(), columns, 1, batch_stride};
}
}  // namespace

void matmul(const Context& context, const Tensor& y, const Tensor& a, const Tensor& b,
            MatmulArgs args) {
  const int64_t m = y.size(-2);
  const int64_t n = b.size(args.transpose_b ? -2 : -1);
  int64_t batch = 1;
  for (int i = 0; i < y.rank() - 2; ++i) batch *= y.size(i);
  LtArgs product{.batch = batch,
                 .m = m,
                 .n = n,
                 .k = b.size(args.transpose_b ? -1 : -2),
                 .a = operand(a, args.transpose_a),
                 .b = operand(b, args.transpose_b),
                 .c = {y.raw(), y.size(-1), m * y.size(-1)},
                 .accumulate = args.accumulate,
                 .dtype = a.dtype(),
                 .c_dtype = y.dtype()};
  if (b.rank() == 2 && a.rank() > 2 && !args.transpose_a) {
    // The rows of all matrices of a, one after the other, are one matrix.
    product.m *= batch;
    product.batch = 1;
  }
  multiply(context, product);
}

}  // namespace tessera::cuda
