// layer_norm: x (..., C), weight (C), bias (C) -> y (..., C). For each of the R rows
//   y = (x - mean) * rstd * weight + bias,  rstd = 1 / sqrt(variance + epsilon)
// (Ba, Kiros and Hinton, arXiv:1607.06450). The gradient needs x, weight, mean (R) and rstd (R).
#include "core/ops/layer_norm.h"
#include "core/ops/layer_norm_rows.h"

#include "core/autograd.h"
#include "core/ops.h"
#include "core/trace.h"

namespace tessera::ops {

void offer_recompute(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     int64_t rows, float epsilon) {
  if (!grad_enabled()) return;
  y.set_recompute([x = saved(x), weight = saved(weight), bias = saved(bias), rows, epsilon] {
    const InUse in_use({&x, &weight, &bias});
    const Context context = current_context(x.device());
    const Tensor again = context.workspace(x.shape(), x.dtype());
    const Tensor statistics = context.workspace({2, rows});
    kernels::layer_norm_forward(context, again, statistics.rows(0, 1).view({rows}),
                                statistics.rows(1, 2).view({rows}), x, weight, bias, epsilon);
    return again;
  });
}

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon) {
  const int64_t rows = checked_norm_rows("layer_norm", x, weight, bias);
  const trace::Scope scope("layer_norm");
  const InUse in_use({&x, &weight, &bias});
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor mean = Tensor::empty({rows}, DType::f32, x.device());
  const Tensor rstd = Tensor::empty({rows}, DType::f32, x.device());
  kernels::layer_norm_forward(current_context(x.device()), y, mean, rstd, x, weight, bias, epsilon);
  offer_recompute(y, x, weight, bias, rows, epsilon);
  return record("layer_norm", y, {x, weight, bias},
                [x = saved(x), weight = saved(weight), mean, rstd](const Tensor& dy,
                                                                   InputGradients& grads) {
                  const InUse in_backward({&x, &weight});
                  const auto wanted = [&grads](int input) {
                    return grads.wanted(input) ? grads.destination(input) : Tensor{};
                  };
                  kernels::layer_norm_backward(current_context(dy.device()), wanted(0), wanted(1),
                                               wanted(2), dy, Tensor{}, x, mean, rstd, weight);
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void layer_norm_forward(const Context&, const Tensor& y, const Tensor& mean, const Tensor& rstd,
                        const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon) {
  const int64_t channels = weight.elements();
  visit_float(x.dtype(), "layer_norm", [&]<class T>() {
    parallel_ranges(mean.elements(), 4 * channels, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const T* row = x.data<T>() + r * channels;
        const RowStatistics statistics =
            row_statistics(row_total(row, channels), row, channels, epsilon);
        normalize_row(y.data<T>() + r * channels, row, weight.data<T>(), bias.data<T>(), statistics,
                      channels);
        mean.data<float>()[r] = statistics.mean;
        rstd.data<float>()[r] = statistics.rstd;
      }
    });
  });
}

namespace {

/// With n = (x - mean) * rstd and dn = dy * weight:
///   dx = rstd * (dn - mean(dn) - n * mean(dn * n)) + dsum
/// `dsum` (see layer_norm.h) may be null, and then counts as zero.
template <class T>
void input_gradient_row(T* dx, const T* dy, const T* dsum, const T* x, const T* weight,
                        RowStatistics row, int64_t channels) {
  float dn_total = 0;
  float dn_n_total = 0;
#pragma omp simd reduction(+ : dn_total, dn_n_total)
  for (int64_t i = 0; i < channels; ++i) {
    const float dn = float(dy[i]) * float(weight[i]);
    dn_total += dn;
    dn_n_total += dn * ((float(x[i]) - row.mean) * row.rstd);
  }
  const float dn_mean = dn_total / static_cast<float>(channels);
  const float dn_n_mean = dn_n_total / static_cast<float>(channels);
  const auto gradient = [=](int64_t i) {
    const float n = (float(x[i]) - row.mean) * row.rstd;
    const float centred = multiply_add(float(dy[i]), float(weight[i]), -dn_mean);
    return row.rstd * multiply_add(-n, dn_n_mean, centred);
  };
  if (dsum == nullptr) {
#pragma omp simd
    for (int64_t i = 0; i < channels; ++i) dx[i] = rounded<T>(gradient(i));
  } else {
#pragma omp simd
    for (int64_t i = 0; i < channels; ++i) dx[i] = rounded<T>(gradient(i) + float(dsum[i]));
  }
}

/// dweight += dy * (x - mean) * rstd, dbias += dy, in f32.
template <class T>
void add_parameter_gradients_row(float* dweight, float* dbias, const T* dy, const T* x,
                                 RowStatistics row, int64_t channels) {
#pragma omp simd
  for (int64_t i = 0; i < channels; ++i) {
    const float n = (float(x[i]) - row.mean) * row.rstd;
    dweight[i] = multiply_add(float(dy[i]), n, dweight[i]);
    dbias[i] += float(dy[i]);
  }
}

/// Rows are summed in chunks, and then the chunks' sums are added in order. The number of chunks
/// depends only on the number of rows, so the bits are the same for any number of threads.
constexpr int64_t max_chunks = 32;
constexpr int64_t min_chunk_rows = 16;

/// Adds up the chunks of `partial` (chunks, 2, C) and writes dweight and dbias, if defined.
template <class T>
void write_parameter_gradients(const Tensor& dweight, const Tensor& dbias, const Tensor& partial) {
  const int64_t chunks = partial.size(0);
  const int64_t channels = partial.size(2);
  float* total = partial.data<float>();
  for (int64_t chunk = 1; chunk < chunks; ++chunk) {
    const float* add = total + chunk * 2 * channels;
#pragma omp simd
    for (int64_t i = 0; i < 2 * channels; ++i) total[i] += add[i];
  }
  const auto write = [channels](const Tensor& gradient, const float* sum) {
    if (!gradient.defined()) return;
    T* out = gradient.data<T>();
    for (int64_t i = 0; i < channels; ++i) out[i] = rounded<T>(sum[i]);
  };
  write(dweight, total);
  write(dbias, total + channels);
}

}  // namespace

void layer_norm_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                         const Tensor& dbias, const Tensor& dy, const Tensor& dsum, const Tensor& x,
                         const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const int64_t rows = mean.elements();
  const int64_t channels = weight.elements();
  const int64_t chunk_rows = std::max(min_chunk_rows, (rows + max_chunks - 1) / max_chunks);
  const int64_t chunks = std::max(int64_t{1}, (rows + chunk_rows - 1) / chunk_rows);
  const bool parameters = dweight.defined() || dbias.defined();
  const Tensor partial = context.workspace({parameters ? chunks : 0, 2, channels});
  visit_float(x.dtype(), "layer_norm", [&]<class T>() {
    T* out = dx.defined() ? dx.data<T>() : nullptr;
    const T* more = dsum.defined() ? dsum.data<T>() : nullptr;
    parallel_ranges(chunks, 8 * chunk_rows * channels, [&](int64_t first, int64_t last) {
      float* sums = parameters ? partial.data<float>() + first * 2 * channels : nullptr;
      if (parameters) std::fill_n(sums, (last - first) * 2 * channels, 0.0f);
      for (int64_t r = first * chunk_rows; r < std::min(last * chunk_rows, rows); ++r) {
        const int64_t at = r * channels;
        const T* grad = dy.data<T>() + at;
        const T* in = x.data<T>() + at;
        const RowStatistics row{mean.data<float>()[r], rstd.data<float>()[r]};
        if (out != nullptr) {
          input_gradient_row(out + at, grad, more == nullptr ? nullptr : more + at, in,
                             weight.data<T>(), row, channels);
        }
        if (parameters) {
          float* chunk = sums + (r / chunk_rows - first) * 2 * channels;
          add_parameter_gradients_row(chunk, chunk + channels, grad, in, row, channels);
        }
      }
    });
    if (parameters) write_parameter_gradients<T>(dweight, dbias, partial);
  });
}

}  // namespace tessera::cpu
