// linear: y (R, out) = activation(x (R, in) W + bias), W stored as [in, out] or as [out, in].
//
// `pre` is the value before the activation. With an activation, `pre` is kept for the backward:
//   g = dy * activation'(pre),  dW = x^T g,  dbias = sums of g's columns,  dx = g W^T.
//
// The backward saves memory in two ways. First, g overwrites `pre` if no later backward needs
// `pre`. Second, dW is computed before dx, because only dW needs x. If x was recomputed for dW, x
// is freed before dx is allocated.
//
// With GELU, the next linear layer does not keep its input, which is this layer's y. Instead, the
// backward of the next layer computes y again, as GELU of `pre` (Kept, core/autograd.h). The result
// must be exactly the y of the forward. So on all devices GELU is a separate kernel, which reads
// `pre` after rounding. An epilogue of cuBLASLt would apply GELU to the f32 value before rounding.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/gelu.h"
#include "core/ops/linear.h"
#include "core/product.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, WeightLayout layout) {
  const bool in_out = layout == WeightLayout::in_out;
  TESSERA_CHECK(weight.rank() == 2, "linear: weight has shape {}, expected {}", weight.shape(),
                in_out ? "[in, out]" : "[out, in]");
  const int64_t in = weight.size(in_out ? 0 : 1);
  const int64_t out = weight.size(in_out ? 1 : 0);
  TESSERA_CHECK(x.rank() >= 1 && x.size(-1) == in, "linear: x has shape {}, expected [..., {}]",
                x.shape(), in);
  TESSERA_CHECK(x.dtype() == weight.dtype(), "linear: weight has dtype {}, expected {}",
                dtype_name(weight.dtype()), dtype_name(x.dtype()));
  if (!bias.defined()) return;
  TESSERA_CHECK(bias.shape() == Shape{out}, "linear: bias has shape {}, expected [{}]",
                bias.shape(), out);
  TESSERA_CHECK(bias.dtype() == x.dtype(), "linear: bias has dtype {}, expected {}",
                dtype_name(bias.dtype()), dtype_name(x.dtype()));
}

/// True if the operation will be recorded. The backward of a recorded operation with an activation
/// needs `pre`.
bool recorded(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  return grad_enabled() && (x.requires_grad() || weight.requires_grad() || bias.requires_grad());
}

/// Returns dy * gelu'(pre). Overwrites `pre`, unless something else refers to it: a later backward
/// may still recompute GELU's output from `pre`.
Tensor gradient_before_gelu(const Context& context, const Tensor& dy, const Tensor& pre) {
  const Tensor g = pre.unique() ? pre : context.workspace(pre.shape(), pre.dtype());
  kernels::gelu_backward(context, g, dy, pre);
  return g;
}
}  // namespace

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias, LinearOptions options) {
  check_linear(x, weight, bias, options.layout);
  const trace::Scope scope("linear");
  const InUse in_use({&x, &weight, &bias});
  const auto [layout, activation] = options;
  const int64_t out = weight.size(layout == WeightLayout::in_out ? 1 : 0);
  const Shape shape = x.shape().with_last(out);
  // `pre` is allocated before y. So if both need new pages, y is at the end at which the heap grows
  // (core/heap.h). y is freed before `pre`. The free memory of y then joins the pages by which the
  // heap grows next, and together they can hold a larger block.
  Tensor pre;
  if (activation != Activation::none && recorded(x, weight, bias)) {
    pre = Tensor::empty(shape, x.dtype(), x.device());
  }
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::linear_forward(current_context(x.device()), y, pre, x, weight, bias, layout, activation);

  if (pre.defined()) {
    y.set_recompute([pre] {
      const Context context = current_context(pre.device());
      const Tensor again = context.workspace(pre.shape(), pre.dtype());
      kernels::gelu_forward(context, again, pre);
      return again;
    });
  }
  return record("linear", y, {x, weight, bias},
                [x = Kept(x), weight = saved(weight), pre, layout](const Tensor& dy,
                                                                   InputGradients& grads) {
                  const Context context = current_context(dy.device());
                  const Tensor g = pre.defined() ? gradient_before_gelu(context, dy, pre) : dy;
                  const auto wanted = [&](int input) {
                    return grads.wanted(input) ? grads.destination(input) : Tensor();
                  };
                  if (grads.wanted(1) || grads.wanted(2)) {
                    const Tensor dweight = wanted(1);
                    const Tensor dbias = wanted(2);
                    const Tensor input = dweight.defined() ? x.get() : Tensor();
                    const InUse in_backward({&input});
                    kernels::linear_weight_gradient(context, dweight, dbias, g, input, layout);
                  }
                  if (const Tensor dx = wanted(0); dx.defined()) {
                    const InUse in_backward({&weight});
                    kernels::linear_input_gradient(context, dx, g, weight, layout);
                  }
                });
}

}  // namespace tessera::ops

namespace tessera::kernels {

namespace {
struct Sizes {
  int64_t in, out, rows;
  int64_t row_stride, column_stride;  // of W, read as (in, out)
};

/// Returns the sizes for y (..., out) and a weight of the given layout.
Sizes sizes_of(const Tensor& y, const Tensor& weight, WeightLayout layout) {
  const bool in_out = layout == WeightLayout::in_out;
  const int64_t in = weight.size(in_out ? 0 : 1);
  const int64_t out = weight.size(in_out ? 1 : 0);
  return {in, out, rows_of(y), in_out ? out : 1, in_out ? 1 : in};
}
}  // namespace

void linear_forward(const Context& context, const Tensor& y, const Tensor& pre, const Tensor& x,
                    const Tensor& weight, const Tensor& bias, WeightLayout layout,
                    Activation activation) {
  const auto [in, out, rows, row_stride, column_stride] = sizes_of(y, weight, layout);
  const Tensor& product = pre.defined() ? pre : y;
  multiply(context, {.m = rows,
                     .n = out,
                     .k = in,
                     .a = {x.raw(), in},
                     .b = {weight.raw(), row_stride, column_stride},
                     .c = {product.raw(), out},
                     .bias = bias.defined() ? bias.raw() : nullptr,
                     .dtype = x.dtype(),
                     .c_dtype = y.dtype()});
  if (activation == Activation::gelu) gelu_forward(context, y, product);
}

void linear_weight_gradient(const Context& context, const Tensor& dweight, const Tensor& dbias,
                            const Tensor& g, const Tensor& x, WeightLayout layout) {
  if (dbias.defined()) column_sums(context, dbias, g);
  if (!dweight.defined()) return;
  const auto [in, out, rows, row_stride, column_stride] = sizes_of(g, dweight, layout);
  const ConstMatrix x_transposed{x.raw(), 1, in};
  const ConstMatrix g_transposed{g.raw(), 1, out};
  const ConstMatrix x_rows{x.raw(), in};
  const ConstMatrix g_rows{g.raw(), out};
  const bool in_out = layout == WeightLayout::in_out;
  multiply(context, {.m = in_out ? in : out,
                     .n = in_out ? out : in,
                     .k = rows,
                     .a = in_out ? x_transposed : g_transposed,
                     .b = in_out ? g_rows : x_rows,
                     .c = {dweight.raw(), in_out ? out : in},
                     .dtype = g.dtype(),
                     .c_dtype = dweight.dtype()});
}

void linear_input_gradient(const Context& context, const Tensor& dx, const Tensor& g,
                           const Tensor& weight, WeightLayout layout) {
  const auto [in, out, rows, row_stride, column_stride] = sizes_of(g, weight, layout);
  multiply(context, {.m = rows,
                     .n = in,
                     .k = out,
                     .a = {g.raw(), out},
                     .b = {weight.raw(), column_stride, row_stride},
                     .c = {dx.raw(), in},
                     .dtype = g.dtype(),
                     .c_dtype = dx.dtype()});
}

}  // namespace tessera::kernels

namespace tessera::cpu {

namespace {
/// Sums each column, first within runs of 64 rows and then over the runs. The order does not depend
/// on the number of threads.
template <class T>
void sum_columns(T* out, const T* x, int64_t rows, int64_t columns) {
  constexpr int64_t tile = 128;
  constexpr int64_t run = 64;
  const int64_t tiles = (columns + tile - 1) / tile;
  parallel_ranges(tiles, tile * rows, [=](int64_t first, int64_t last) {
    for (int64_t column = first * tile; column < std::min(last * tile, columns); column += tile) {
      const int64_t width = std::min(tile, columns - column);
      float total[tile] = {};
      for (int64_t row = 0; row < rows; row += run) {
        const int64_t end = std::min(row + run, rows);
        float partial[tile] = {};
        int64_t r = row;
        // Four rows at a time: a core reads several streams of memory faster than one.
        for (; r + 4 <= end; r += 4) {
          const T* in = x + r * columns + column;
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) {
            partial[i] = (((partial[i] + float(in[i])) + float(in[i + columns])) +
                          float(in[i + 2 * columns])) +
                         float(in[i + 3 * columns]);
          }
        }
        for (; r < end; ++r) {
          const T* in = x + r * columns + column;
#pragma omp simd
          for (int64_t i = 0; i < width; ++i) partial[i] += float(in[i]);
        }
        for (int64_t i = 0; i < width; ++i) total[i] += partial[i];
      }
      for (int64_t i = 0; i < width; ++i) out[column + i] = rounded<T>(total[i]);
    }
  });
}
}  // namespace

void column_sums(const Context&, const Tensor& sums, const Tensor& x) {
  visit_float(x.dtype(), "linear", [&]<class T>() {
    sum_columns(sums.data<T>(), x.data<T>(), rows_of(x), sums.elements());
  });
}

}  // namespace tessera::cpu
