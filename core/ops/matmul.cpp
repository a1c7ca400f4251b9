// matmul: y (..., m, n) = op(a) (..., m, k) op(b) (..., k, n), where op transposes the last two
// dimensions if asked. Leading dimensions are broadcast as in NumPy. If a and b have equal leading
// dimensions, or if b is 2-D, one call of kernels::matmul is enough. Otherwise the products are
// split into runs, with one call for each run. In a run, each operand is either a series of
// contiguous matrices or one matrix that is used for every product of the run.
//
// With C = op(A) op(B) and dC the gradient of C, each gradient is a product again:
//   dA = dC op(B)^T, or op(B) dC^T if A is stored transposed;
//   dB = op(A)^T dC, or dC^T op(A) if B is stored transposed.
// If a matrix is used more than once, its gradient is a sum over all uses, accumulated in f32.
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
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
  Shape shape =
      broadcast_shape("matmul's leading dimensions", leading(a.shape()), leading(b.shape()));
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

/// True if one call of kernels::matmul can multiply a and b.
bool in_one_call(const Tensor& a, const Tensor& b) {
  return b.rank() == 2 || leading(a.shape()) == leading(b.shape());
}

/// Computes `to`, the gradient of a, from dy, the gradient of the product. If args.accumulate, adds
/// the gradient to `to`.
void left_gradient(const Tensor& to, const Tensor& dy, const Tensor& b, MatmulArgs args) {
  const Context context = current_context(dy.device());
  if (args.transpose_a) {
    kernels::matmul(context, to, b, dy, MatmulArgs{args.transpose_b, true, args.accumulate});
  } else {
    kernels::matmul(context, to, dy, b, MatmulArgs{false, !args.transpose_b, args.accumulate});
  }
}
/// Computes `to`, the gradient of b, from dy, the gradient of the product. If args.accumulate, adds
/// the gradient to `to`.
void right_gradient(const Tensor& to, const Tensor& dy, const Tensor& a, MatmulArgs args) {
  const Context context = current_context(dy.device());
  if (args.transpose_b) {
    kernels::matmul(context, to, dy, a, MatmulArgs{true, args.transpose_a, args.accumulate});
  } else {
    kernels::matmul(context, to, a, dy, MatmulArgs{!args.transpose_a, false, args.accumulate});
  }
}

/// Computes db if b is one matrix that multiplied all matrices of a. db is a sum over all matrices
/// of a, accumulated in f32.
void shared_gradient(const Tensor& db, const Tensor& dy, const Tensor& a, MatmulArgs args) {
  if (!args.transpose_a) return right_gradient(db, as_one_matrix(dy), as_one_matrix(a), args);
  const Context context = current_context(dy.device());
  const Tensor lefts = as_matrices(a);
  const Tensor rights = as_matrices(dy);
  const int64_t count = lefts.size(0);
  if (count == 0) return kernels::fill(context, db, 0.0f);
  const bool separate = count > 1 && db.dtype() != DType::f32;
  const Tensor sum = separate ? context.workspace(db.shape()) : db;
  for (int64_t i = 0; i < count; ++i) {
    args.accumulate = i > 0;
    right_gradient(sum, rights.rows(i, i + 1).view({rights.size(1), rights.size(2)}),
                   lefts.rows(i, i + 1).view({lefts.size(1), lefts.size(2)}), args);
  }
  if (separate) kernels::convert(context, db, sum);
}

/// The `count` matrices of one tensor in a run. If `step` is 1, these are the consecutive matrices
/// from matrix `first` on. If `step` is 0, matrix `first` is used `count` times.
struct Run {
  int64_t first;
  int64_t count;
  int64_t step;

  Tensor of(const Tensor& x) const {
    const Tensor taken = as_matrices(x).rows(first, first + (step == 0 ? 1 : count));
    return step == 0 ? as_one_matrix(taken) : taken;
  }
  Run at(int64_t i) const { return {first + i * step, 1, 0}; }
};

/// Calls body(y_run, a_run, b_run) for each run, with the Run of each of the three tensors. The
/// runs are in the order of y's matrices.
template <class Body>
void for_each_run(const Shape& y, const Shape& a, const Shape& b, const Body& body) {
  const BroadcastWalk walk = broadcast_walk(leading(y), leading(a), leading(b));
  const auto last = static_cast<size_t>(walk.rank - 1);
  const int64_t count = walk.sizes[last];
  for (int64_t at = 0; at < walk.elements(); at += count) {
    int64_t a_first = 0;
    int64_t b_first = 0;
    int64_t rest = at / count;
    for (size_t dim = last; dim-- > 0;) {
      a_first += rest % walk.sizes[dim] * walk.a_strides[dim];
      b_first += rest % walk.sizes[dim] * walk.b_strides[dim];
      rest /= walk.sizes[dim];
    }
    body(Run{at, count, 1}, Run{a_first, count, walk.a_strides[last]},
         Run{b_first, count, walk.b_strides[last]});
  }
}

/// Computes `to`, the gradient of an operand whose matrices may be used more than once. The
/// gradient of a matrix is a sum of products, one per use of the matrix, accumulated in f32.
class RepeatedSums {
 public:
  RepeatedSums(const Tensor& to, int64_t uses)
      : context_(current_context(to.device())),
        to_(to),
        separate_(to.dtype() != DType::f32 && uses > matrices()),
        sum_(separate_ ? context_.workspace(to.shape()) : to),
        used_(static_cast<size_t>(matrices()), false) {
    if (uses == 0) kernels::fill(context_, sum_, 0.0f);
  }

  /// Adds the contribution of one run to the gradient. Each call product(destination, accumulate,
  /// i) must write its part of the contribution to `destination`, or add the part if `accumulate`.
  /// If the run repeats one matrix, product is called once for each use i of this matrix. Otherwise
  /// product is called once, with i = -1, for the whole run.
  template <class Product>
  void add(const Run& run, const Product& product) {
    auto used = used_.begin() + run.first;
    const int64_t parts = run.step == 0 ? run.count : 1;
    for (int64_t i = 0; i < parts; ++i) {
      product(run.of(sum_), *used, run.step == 0 ? i : int64_t{-1});
      *used = true;
    }
  }

  void finish() const {
    if (separate_) kernels::convert(context_, to_, sum_);
  }

 private:
  int64_t matrices() const { return leading(to_.shape()).elements(); }

  Context context_;
  Tensor to_;
  bool separate_;
  Tensor sum_;
  // used_[i] is true once a contribution has been written to the matrices of a run that begins with
  // matrix i. Later contributions, of this run or of later runs that begin with matrix i, are
  // added. All runs that begin with matrix i have the same matrices.
  std::vector<bool> used_;
};

/// Computes da and db if a and b cannot be multiplied in one call (in_one_call). Matrices of both
/// may then be used more than once.
void broadcast_gradients(const Tensor& dy, const Tensor& a, const Tensor& b, MatmulArgs args,
                         InputGradients& grads) {
  const auto part = [](const Run& run, int64_t i) { return i < 0 ? run : run.at(i); };
  const int64_t uses = leading(dy.shape()).elements();
  if (grads.wanted(0)) {
    RepeatedSums sums(grads.destination(0), uses);
    for_each_run(dy.shape(), a.shape(), b.shape(),
                 [&](const Run& y, const Run& left, const Run& right) {
                   sums.add(left, [&](const Tensor& to, bool accumulate, int64_t i) {
                     args.accumulate = accumulate;
                     left_gradient(to, part(y, i).of(dy), part(right, i).of(b), args);
                   });
                 });
    sums.finish();
  }
  if (!grads.wanted(1)) return;
  RepeatedSums sums(grads.destination(1), uses);
  for_each_run(dy.shape(), a.shape(), b.shape(),
               [&](const Run& y, const Run& left, const Run& right) {
                 sums.add(right, [&](const Tensor& to, bool accumulate, int64_t i) {
                   args.accumulate = accumulate;
                   right_gradient(to, part(y, i).of(dy), part(left, i).of(a), args);
                 });
               });
  sums.finish();
}
}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, bool transpose_a, bool transpose_b) {
  const Shape shape = product_shape(a, b, transpose_a, transpose_b);
  const trace::Scope scope("matmul");
  const InUse in_use({&a, &b});
  const Context context = current_context(a.device());
  const MatmulArgs args{transpose_a, transpose_b, false};
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  if (in_one_call(a, b)) {
    kernels::matmul(context, y, a, b, args);
  } else {
    for_each_run(shape, a.shape(), b.shape(),
                 [&](const Run& to, const Run& left, const Run& right) {
                   kernels::matmul(context, to.of(y), left.of(a), right.of(b), args);
                 });
  }

  return record("matmul", y, {a, b},
                [a = saved(a), b = saved(b), args](const Tensor& dy, InputGradients& grads) {
                  const InUse in_backward(
                      {grads.wanted(1) ? &a : nullptr, grads.wanted(0) ? &b : nullptr});
                  if (!in_one_call(a, b)) return broadcast_gradients(dy, a, b, args, grads);
                  if (grads.wanted(0)) left_gradient(grads.destination(0), dy, b, args);
                  if (!grads.wanted(1)) return;
                  if (b.rank() < a.rank()) {
                    shared_gradient(grads.destination(1), dy, a, args);
                  } else {
                    right_gradient(grads.destination(1), dy, a, args);
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
    // The matrices of a are contiguous, so all their rows form one matrix.
    product.m *= batch;
    product.batch = 1;
  }
  multiply(context, product);
}

}  // namespace tessera::kernels
