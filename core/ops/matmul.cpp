// matmul: y (..., m, n) = op(a) (..., m, k) op(b) (..., k, n), where op transposes the last two
// dimensions if asked. Leading dimensions are equal, or b is 2-D and used for all.
//
// With C = op(A) op(B) and dC, each gradient is a product again, for each way A and B are stored:
//   dA = dC op(B)^T, or op(B) dC^T where A is stored transposed;
//   dB = op(A)^T dC, or dC^T op(A) where B is stored transposed.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/convert.h"
#include "core/ops/fill.h"
#include "core/ops/matmul.h"
#include "core/product.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
Shape leading(const Shape& shape) { return Shape(std::span(shape.begin(), shape.end() - 2)); }

Shape product_shape(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  TESSERA_CHECK(a.rank() >= 2 && b.rank() >= 2,
                "matmul: shapes {} and {}, expected at least two dimensions each", a.shape(),
                b.shape());
  TESSERA_CHECK(a.dtype() == b.dtype(), "matmul: b has dtype {}, expected {}",
                dtype_name(b.dtype()), dtype_name(a.dtype()));
  const int64_t a_inner = a.size(transpose_a ? -2 : -1);
  const int64_t b_inner = b.size(transpose_b ? -1 : -2);
  TESSERA_CHECK(a_inner == b_inner,
                "matmul: shapes {}{} and {}{} have inner extents {} and {}, expected equal",
                a.shape(), transpose_a ? "^T" : "", b.shape(), transpose_b ? "^T" : "", a_inner,
                b_inner);
  Shape shape = leading(a.shape());
  TESSERA_CHECK(b.rank() == 2 || leading(b.shape()) == shape,
                "matmul: b has shape {}, expected the leading dimensions {} of a, or none",
                b.shape(), shape);
  shape.push_back(a.size(transpose_a ? -1 : -2));
  shape.push_back(b.size(transpose_b ? -2 : -1));
  return shape;
}

Tensor as_matrices(const Tensor& x) {
  return x.view({leading(x.shape()).elements(), x.size(-2), x.size(-1)});
}
Tensor as_one_matrix(const Tensor& x) {
  return x.view({leading(x.shape()).elements() * x.size(-2), x.size(-1)});
}

/// db where one b serves all matrices of a: the sum over them, in f32.
void shared_gradient(const Tensor& db, const Tensor& dy, const Tensor& a, MatmulArgs args) {
  const Context context = current_context(dy.device());
  const auto add = [&](const Tensor& to, const Tensor& left, const Tensor& right,
                       bool accumulate) {
    if (args.transpose_b) {
      kernels::matmul(context, to, right, left, MatmulArgs{true, args.transpose_a, accumulate});
    } else {
      kernels::matmul(context, to, left, right, MatmulArgs{!args.transpose_a, false, accumulate});
    }
  };
  if (!args.transpose_a) return add(db, as_one_matrix(a), as_one_matrix(dy), false);
  const Tensor lefts = as_matrices(a);
  const Tensor rights = as_matrices(dy);
  const int64_t count = lefts.size(0);
  if (count == 0) return kernels::fill(context, db, 0.0f);
  const bool separate = count > 1 && db.dtype() != DType::f32;
  const Tensor sum = separate ? context.workspace(db.shape()) : db;
  for (int64_t i = 0; i < count; ++i) {
    add(sum, lefts.rows(i, i + 1).view({lefts.size(1), lefts.size(2)}),
        rights.rows(i, i + 1).view({rights.size(1), rights.size(2)}), i > 0);
  }
  if (separate) kernels::convert(context, db, sum);
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const Shape shape = product_shape(a, b, transpose_a, transpose_b);
  const trace::Scope scope("matmul");
  const InUse in_use({&a, &b});
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  kernels::matmul(current_context(a.device()), y, a, b,
                  MatmulArgs{transpose_a, transpose_b, false});

  return record("matmul", y, {a, b},
                [a = saved(a), b = saved(b), transpose_a, transpose_b](const Tensor& dy,
                                                                       InputGradients& grads) {
                  const Context context = current_context(dy.device());
                  const InUse in_backward(
                      {grads.wanted(1) ? &a : nullptr, grads.wanted(0) ? &b : nullptr});
                  if (grads.wanted(0)) {
                    const bool swap = transpose_a;
                    kernels::matmul(context, grads.destination(0), swap ? b : dy, swap ? dy : b,
                                    swap ? MatmulArgs{transpose_b, true, false}
                                         : MatmulArgs{false, !transpose_b, false});
                  }
                  if (!grads.wanted(1)) return;
                  const Tensor db = grads.destination(1);
                  if (b.rank() < a.rank()) {
                    shared_gradient(db, dy, a, MatmulArgs{transpose_a, transpose_b, false});
                  } else if (transpose_b) {
                    kernels::matmul(context, db, dy, a, MatmulArgs{true, transpose_a, false});
                  } else {
                    kernels::matmul(context, db, a, dy, MatmulArgs{!transpose_a, false, false});
                  }
                });
}

}  // namespace tessera::ops

namespace tessera::kernels {

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
  ProductArgs product{.batch = batch,
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

}  // namespace tessera::kernels
