// rms_norm: x (..., C), weight (C) -> y (..., C). For each of the R rows of C elements
//   y = x * rrms * weight,  rrms = 1 / sqrt(mean(x^2) + epsilon)
// (Zhang and Sennrich, arXiv:1910.07467). For the gradient, x, weight and rrms (R) are kept.
#include "core/ops/rms_norm.h"

#include <algorithm>
#include <cmath>

#include "core/autograd.h"
#include "core/cpu/vector_math.h"
#include "core/ops.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

int64_t checked_rows(const Tensor& x, const Tensor& weight) {
  TESSERA_CHECK(x.rank() >= 1, "rms_norm: x is a scalar, expected (..., C)");
  const Shape expected{x.size(-1)};
  TESSERA_CHECK(weight.shape() == expected, "rms_norm: weight has shape {}, expected {}",
                weight.shape(), expected);
  TESSERA_CHECK(weight.dtype() == x.dtype(), "rms_norm: weight has dtype {}, expected {}",
                dtype_name(weight.dtype()), dtype_name(x.dtype()));
  return Shape(std::span(x.shape().begin(), x.shape().end() - 1)).elements();
}

/// Attaches to y a function that computes y again from x and weight. An operation that reads y in
/// its backward can then keep this function instead of y. Computing y again costs little compared
/// with a matrix product.
void offer_recompute(Tensor& y, const Tensor& x, const Tensor& weight, int64_t rows,
                     float epsilon) {
  if (!grad_enabled()) return;
  y.set_recompute([x = saved(x), weight = saved(weight), rows, epsilon] {
    const InUse in_use({&x, &weight});
    const Context context = current_context(x.device());
    const Tensor again = context.workspace(x.shape(), x.dtype());
    kernels::rms_norm_forward(context, again, context.workspace({rows}), x, weight, epsilon);
    return again;
  });
}

}  // namespace

Tensor rms_norm(const Tensor& x, const Tensor& weight, float epsilon) {
  const int64_t rows = checked_rows(x, weight);
  const trace::Scope scope("rms_norm");
  const InUse in_use({&x, &weight});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor rrms = Tensor::empty({rows}, DType::f32, x.device());
  kernels::rms_norm_forward(current_context(x.device()), y, rrms, x, weight, epsilon);
  offer_recompute(y, x, weight, rows, epsilon);
  return record(
      "rms_norm", y, {x, weight},
      [x = saved(x), weight = saved(weight), rrms](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&x, grads.wanted(0) ? &weight : nullptr});
        const auto wanted = [&grads](int input) {
          return grads.wanted(input) ? grads.destination(input) : Tensor{};
        };
        kernels::rms_norm_backward(current_context(dy.device()), wanted(0), wanted(1), dy, x, rrms,
                                   weight);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void rms_norm_forward(const Context&, const Tensor& y, const Tensor& rrms, const Tensor& x,
                      const Tensor& weight, float epsilon) {
  const int64_t channels = weight.elements();
  visit_float(x.dtype(), "rms_norm", [&]<class T>() {
    const T* scales = weight.data<T>();
    parallel_ranges(rrms.elements(), 3 * channels, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x.data<T>() + r * channels;
        T* out = y.data<T>() + r * channels;
        float squares = 0;
#pragma omp simd reduction(+ : squares)
        for (int64_t i = 0; i < channels; ++i) squares += float(row[i]) * float(row[i]);
        const float reciprocal = 1 / std::sqrt(squares / static_cast<float>(channels) + epsilon);
        rrms.data<float>()[r] = reciprocal;
#pragma omp simd
        for (int64_t i = 0; i < channels; ++i) {
          out[i] = rounded<T>(float(row[i]) * reciprocal * float(scales[i]));
        }
      }
    });
  });
}

namespace {

/// With n = x * rrms and dn = dy * weight:  dx = rrms * (dn - n * mean(dn * n))
template <class T>
void input_gradient_row(T* dx, const T* dy, const T* x, const T* weight, float rrms,
                        int64_t channels) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < channels; ++i) {
    total += float(dy[i]) * float(weight[i]) * (float(x[i]) * rrms);
  }
  const float mean = total / static_cast<float>(channels);
#pragma omp simd
  for (int64_t i = 0; i < channels; ++i) {
    const float dn = float(dy[i]) * float(weight[i]);
    dx[i] = rounded<T>(rrms * multiply_add(-(float(x[i]) * rrms), mean, dn));
  }
}

/// dweight += dy * n, in f32, where n = x * rrms.
template <class T>
void add_weight_gradient_row(float* dweight, const T* dy, const T* x, float rrms,
                             int64_t channels) {
#pragma omp simd
  for (int64_t i = 0; i < channels; ++i) {
    dweight[i] = multiply_add(float(dy[i]), float(x[i]) * rrms, dweight[i]);
  }
}

/// For dweight, the rows are split into chunks. The rows of each chunk are summed, and then the
/// chunks' sums are added in order. The number of chunks depends only on the number of rows, so the
/// result has the same bits for any number of threads.
constexpr int64_t max_chunks = 32;
constexpr int64_t min_chunk_rows = 16;

/// Adds up `partial` (chunks, C), the sums of the chunks, and writes the result to dweight.
template <class T>
void write_weight_gradient(const Tensor& dweight, const Tensor& partial) {
  const int64_t channels = partial.size(1);
  float* total = partial.data<float>();
  for (int64_t chunk = 1; chunk < partial.size(0); ++chunk) {
    const float* more = total + chunk * channels;
#pragma omp simd
    for (int64_t i = 0; i < channels; ++i) total[i] += more[i];
  }
  T* out = dweight.data<T>();
  for (int64_t i = 0; i < channels; ++i) out[i] = rounded<T>(total[i]);
}

}  // namespace

void rms_norm_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dy, const Tensor& x, const Tensor& rrms,
                       const Tensor& weight) {
  const int64_t rows = rrms.elements();
  const int64_t channels = x.size(-1);
  const int64_t chunk_rows = std::max(min_chunk_rows, (rows + max_chunks - 1) / max_chunks);
  const int64_t chunks = std::max(int64_t{1}, (rows + chunk_rows - 1) / chunk_rows);
  const Tensor partial = context.workspace({dweight.defined() ? chunks : 0, channels});
  visit_float(x.dtype(), "rms_norm", [&]<class T>() {
    parallel_ranges(chunks, 6 * chunk_rows * channels, [&](int64_t first, int64_t last) {
      for (int64_t chunk = first; chunk < last; ++chunk) {
        float* sums = dweight.defined() ? partial.data<float>() + chunk * channels : nullptr;
        if (sums != nullptr) std::fill_n(sums, channels, 0.0f);
        for (int64_t r = chunk * chunk_rows; r < std::min((chunk + 1) * chunk_rows, rows); ++r) {
          const int64_t at = r * channels;
          const T* grad = dy.data<T>() + at;
          const T* in = x.data<T>() + at;
          const float reciprocal = rrms.data<float>()[r];
          if (dx.defined()) {
            input_gradient_row(dx.data<T>() + at, grad, in, weight.data<T>(), reciprocal, channels);
          }
          if (sums != nullptr) add_weight_gradient_row(sums, grad, in, reciprocal, channels);
        }
      }
    });
    if (dweight.defined()) write_weight_gradient<T>(dweight, partial);
  });
}

}  // namespace tessera::cpu
