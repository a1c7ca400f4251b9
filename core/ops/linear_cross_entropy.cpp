// linear_cross_entropy: loss [] = cross_entropy(x (R, C) weight (V, C)^T, targets (R)).
//
// The logits (R, V) would be the largest tensor of a language model. So they are computed for one
// chunk of rows at a time. Each row of logits is padded to logits_stride(V) elements.
//
// With bf16 operands on CUDA, logits are bf16. If the loss is recorded, the forward also computes
// the gradients, as if the gradient of the loss were 1. It overwrites each chunk of logits with the
// gradient of these logits, and computes the chunk's part of dx and dweight from this gradient. The
// backward only multiplies dx and dweight by the gradient of the loss.
//
// With other operands, or on the CPU, logits are f32, and the backward computes the gradients. If
// one chunk has all rows, its logits are kept for the backward. Otherwise the backward computes the
// logits of each chunk again, which costs one more product and saves memory. The products for dx
// and dweight need the gradient of the logits in the operands' dtype. So an f32 gradient overwrites
// the logits, and a 16-bit gradient has its own buffer.
//
// With 16-bit operands on CUDA, if V is not a multiple of 64, the products read a copy of the
// weight with logits_columns(V) rows: the V rows of the weight, and then rows of zeros. The logits
// of the added rows are zero, and so are the gradients of these logits.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/convert.h"
#include "core/ops/copy.h"
#include "core/ops/cross_entropy.h"
#include "core/ops/fill.h"
#include "core/ops/linear_cross_entropy.h"
#include "core/ops/matmul.h"
#include "core/ops/scale.h"
#include "core/ops/sum.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

void check_linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                                int64_t chunk_rows) {
  TESSERA_CHECK(weight.rank() == 2 && weight.size(0) > 0,
                "linear_cross_entropy: weight has shape {}, expected [V, C] with V > 0",
                weight.shape());
  TESSERA_CHECK(x.rank() >= 1 && x.size(-1) == weight.size(1),
                "linear_cross_entropy: x has shape {}, expected [..., {}]", x.shape(),
                weight.size(1));
  TESSERA_CHECK(x.dtype() == weight.dtype(),
                "linear_cross_entropy: weight has dtype {}, expected {}",
                dtype_name(weight.dtype()), dtype_name(x.dtype()));
  const Shape rows(std::span(x.shape().begin(), x.shape().end() - 1));
  TESSERA_CHECK(targets.shape() == rows, "linear_cross_entropy: targets have shape {}, expected {}",
                targets.shape(), rows);
  TESSERA_CHECK(targets.dtype() == DType::i32,
                "linear_cross_entropy: targets have dtype {}, expected i32",
                dtype_name(targets.dtype()));
  TESSERA_CHECK(targets.elements() > 0,
                "linear_cross_entropy: targets have shape {}, expected at least one row",
                targets.shape());
  TESSERA_CHECK(chunk_rows >= 0, "linear_cross_entropy: chunks of {} rows, expected at least 0",
                chunk_rows);
}

/// Returns the weight that the products read: weight (V, C) with rows of zeros appended, up to
/// logits_columns(V) rows in all.
Tensor padded(const Context& context, const Tensor& weight) {
  const int64_t vocabulary = weight.size(0), channels = weight.size(1);
  const int64_t columns = logits_columns(vocabulary, weight.dtype(), weight.device());
  if (columns == vocabulary) return weight;
  Tensor result = context.workspace({columns, channels}, weight.dtype());
  kernels::copy(context, result.rows(0, vocabulary), weight);
  kernels::fill(context, result.rows(vocabulary, columns), 0.0f);
  return result;
}

/// The operands with leading dimensions flattened: x (R, C) and targets (R). `weight` is the result
/// of padded(), except in a backward that does not read the weight. normalizers (R, 2) are those of
/// the logits, or undefined if the forward computes the gradients.
struct Rows {
  Tensor x, weight, targets, normalizers;
  int64_t vocabulary = 0;
  int64_t chunk = 0;

  int64_t count() const { return targets.size(0); }
  Shape chunk_shape() const { return {chunk, logits_stride(vocabulary)}; }

  template <class Body>
  void for_each_chunk(Body&& body) const {
    for (int64_t begin = 0; begin < count(); begin += chunk) {
      body(begin, std::min(begin + chunk, count()));
    }
  }

  void compute_logits(const Context& context, const Tensor& logits, int64_t begin,
                      int64_t end) const {
    kernels::matmul(context, logits, x.rows(begin, end), weight, MatmulArgs{.transpose_b = true});
  }
  /// Computes rows [begin, end) of dx, and these rows' contribution to dweight. The first chunk
  /// overwrites dweight, and later chunks add to it. dx or dweight may be undefined.
  void add_gradients(const Context& context, const Tensor& dlogits, const Tensor& dx,
                     const Tensor& dweight, int64_t begin, int64_t end) const {
    if (dx.defined()) {
      kernels::matmul(context, dx.rows(begin, end), dlogits, weight, MatmulArgs{});
    }
    if (dweight.defined()) {
      kernels::matmul(context, dweight, dlogits, x.rows(begin, end),
                      MatmulArgs{.transpose_a = true, .accumulate = begin > 0});
    }
  }
};

/// Computes dx and dweight, if defined, chunk by chunk. `kept` has the logits of the forward if
/// there is only one chunk, and is undefined otherwise.
void rows_backward(const Rows& rows, const Tensor& kept, const Tensor& dloss, const Tensor& dx,
                   const Tensor& dweight) {
  const Context context = current_context(dloss.device());
  const DType dtype = rows.x.dtype();
  const Shape chunk_shape = rows.chunk_shape();
  const Tensor logits = kept.defined() ? kept : context.workspace(chunk_shape);
  // The products need the gradient in the operands' dtype. An f32 gradient overwrites the logits.
  const Tensor dlogits = dtype == DType::f32 ? logits : context.workspace(chunk_shape, dtype);
  if (rows.weight.size(0) > rows.vocabulary) {
    kernels::fill(context, dlogits, 0.0f);  // the product for dx reads the padding too
  }
  // The chunks' contributions to dweight are summed in f32 and rounded once.
  const bool separate = dweight.defined() && dtype != DType::f32 && rows.chunk < rows.count();
  const Tensor sum = separate ? context.workspace(dweight.shape()) : dweight;
  const float share = 1.0f / static_cast<float>(rows.count());
  rows.for_each_chunk([&](int64_t begin, int64_t end) {
    const Tensor values = logits.rows(0, end - begin);
    const Tensor gradient = dlogits.rows(0, end - begin);
    if (!kept.defined()) rows.compute_logits(context, values, begin, end);
    kernels::cross_entropy_backward(context, gradient, dloss, values,
                                    rows.normalizers.rows(begin, end),
                                    rows.targets.rows(begin, end), rows.vocabulary, share);
    rows.add_gradients(context, gradient, dx, sum, begin, end);
  });
  if (separate) kernels::convert(context, dweight, sum);
}

/// Computes the loss and, in the same pass, the gradients of x and the weight. `rows` has the
/// operands with leading dimensions flattened.
Tensor loss_with_gradients(const Context& context, const Tensor& x, const Tensor& weight,
                           const Rows& rows) {
  const int64_t count = rows.count();
  const float share = 1.0f / static_cast<float>(count);
  const Tensor dx = x.requires_grad() ? Tensor::empty(x.shape(), x.dtype(), x.device()) : Tensor();
  // dweight stays f32 until the backward multiplies it by dloss, so that it is rounded only once.
  const Tensor dweight = weight.requires_grad()
                             ? Tensor::empty(rows.weight.shape(), DType::f32, x.device())
                             : Tensor();
  const Tensor dx_rows = dx.defined() ? dx.view(rows.x.shape()) : Tensor();
  Tensor loss = Tensor::empty({}, DType::f32, x.device());
  {
    const Tensor logits = context.workspace(rows.chunk_shape(), x.dtype());
    const Tensor losses = context.workspace({count});
    rows.for_each_chunk([&](int64_t begin, int64_t end) {
      const Tensor chunk = logits.rows(0, end - begin);
      rows.compute_logits(context, chunk, begin, end);
      kernels::cross_entropy_in_place(context, losses.rows(begin, end), chunk,
                                      rows.targets.rows(begin, end), rows.vocabulary, share);
      rows.add_gradients(context, chunk, dx_rows, dweight, begin, end);
    });
    kernels::sum(context, loss, losses, share);
  }
  return record("linear_cross_entropy", loss, {x, weight},
                [dx, dweight, vocabulary = rows.vocabulary](const Tensor& dloss,
                                                            InputGradients& grads) {
                  const Context here = current_context(dloss.device());
                  if (dx.defined()) {
                    kernels::scale_by(here, dx, dx, dloss);
                    grads.pass(0, dx);
                  }
                  if (dweight.defined()) {
                    kernels::scale_by(here, grads.destination(1), dweight.rows(0, vocabulary),
                                      dloss);
                  }
                });
}

}  // namespace

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& targets,
                            int64_t chunk_rows) {
  check_linear_cross_entropy(x, weight, targets, chunk_rows);
  const trace::Scope scope("linear_cross_entropy");
  const InUse in_use({&x, &weight, &targets});
  const Context context = current_context(x.device());
  const int64_t count = targets.elements();
  const int64_t vocabulary = weight.size(0);
  kernels::check_targets(context, "linear_cross_entropy", targets, vocabulary);

  const Shape by_rows{count, x.size(-1)};
  Rows rows{
      .x = x.view(by_rows),
      .weight = padded(context, weight),
      .targets = targets.view({count}),
      .normalizers = Tensor(),
      .vocabulary = vocabulary,
      .chunk = std::min(count, logits_chunk_rows(vocabulary, x.dtype(), x.device(), chunk_rows))};
  const bool recorded = grad_enabled() && (x.requires_grad() || weight.requires_grad());
  if (recorded && gradient_in_forward(x.dtype(), x.device())) {
    return loss_with_gradients(context, x, weight, rows);
  }
  rows.normalizers = Tensor::empty({count, 2}, DType::f32, x.device());
  const bool keep = recorded && rows.chunk == count;
  Tensor logits = Tensor::empty(rows.chunk_shape(), logits_dtype(x.dtype(), x.device()), x.device(),
                                keep ? Category::activations : Category::workspace);
  const Tensor losses = context.workspace({count});
  rows.for_each_chunk([&](int64_t begin, int64_t end) {
    const Tensor chunk = logits.rows(0, end - begin);
    rows.compute_logits(context, chunk, begin, end);
    kernels::cross_entropy_forward(context, losses.rows(begin, end),
                                   rows.normalizers.rows(begin, end), chunk,
                                   rows.targets.rows(begin, end), vocabulary);
  });
  Tensor loss = Tensor::empty({}, DType::f32, x.device());
  kernels::sum(context, loss, losses, 1.0f / static_cast<float>(count));

  if (!keep) logits = Tensor();
  return record("linear_cross_entropy", loss, {x, weight},
                [x = saved(x), weight = saved(weight), targets = rows.targets,
                 normalizers = rows.normalizers, chunk = rows.chunk, by_rows,
                 logits](const Tensor& dloss, InputGradients& grads) {
                  const bool again = !logits.defined();
                  const InUse in_backward({again || grads.wanted(1) ? &x : nullptr,
                                           again || grads.wanted(0) ? &weight : nullptr});
                  const Tensor dx =
                      grads.wanted(0) ? grads.destination(0).view(by_rows) : Tensor();
                  const Tensor dweight = grads.wanted(1) ? grads.destination(1) : Tensor();
                  // dweight is computed without the weight. If only dweight is wanted and the
                  // logits were kept, the weight need not be padded.
                  const Tensor factor = again || grads.wanted(0)
                                            ? padded(current_context(dloss.device()), weight)
                                            : weight;
                  const Rows operands{x.view(by_rows), factor,         targets,
                                      normalizers,     weight.size(0), chunk};
                  rows_backward(operands, logits, dloss, dx, dweight);
                });
}

}  // namespace tessera::ops
