// batch_norm: x (..., C), weight (C), bias (C), residual (..., C) -> y (..., C). For each channel,
// over all R rows of the batch,
//   y = (x - mean) * rstd * weight + bias + residual,  rstd = 1 / sqrt(variance + epsilon)
// (Ioffe and Szegedy, arXiv:1502.03167). With relu, y = max(y, 0) follows in the same pass over
// memory. x, weight, mean and rstd (C) are kept for the gradient. With relu, y is kept too, because
// dy is then used only where y > 0.
#include <cmath>
#include <limits>

#include "core/autograd.h"
#include "core/image_ops.h"
#include "core/ops/add.h"
#include "core/ops/batch_norm.h"
#include "core/ops/batch_norm_rows.h"
#include "core/ops/convert.h"
#include "core/ops/copy.h"
#include "core/ops/layer_norm_rows.h"
#include "core/ops/scale.h"
#include "core/ops/unary.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {

/// Throws unless the inputs fit each other. Returns the number of rows of x.
int64_t check_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                         const Tensor& residual) {
  const int64_t rows = checked_norm_rows("batch_norm", x, weight, bias);
  TESSERA_CHECK(weight.elements() > 0,
                "batch_norm: weight has shape {}, expected at least one channel", weight.shape());
  if (!residual.defined()) return rows;
  TESSERA_CHECK(residual.shape() == x.shape(), "batch_norm: residual has shape {}, expected {}",
                residual.shape(), x.shape());
  TESSERA_CHECK(residual.dtype() == x.dtype(), "batch_norm: residual has dtype {}, expected {}",
                dtype_name(residual.dtype()), dtype_name(x.dtype()));
  return rows;
}

/// The mean and variance with which x is normalised, f32 (C) each. If they were computed from the
/// batch, `rows` is the number of rows of the whole batch. If the caller of batch_norm_with gave
/// them, they do not depend on x, and `rows` is 0.
struct Statistics {
  Tensor mean, variance;
  int64_t rows = 0;
};

/// Replaces, in place, the statistics of one part of a batch (BatchParts) by the statistics of the
/// whole batch. With mean[p] and variance[p] of the parts p, and averages over all parts:
///   mean = average(mean[p]),  variance = average(variance[p] + (mean[p] - mean)^2)
void average(const Statistics& own, const BatchParts& parts) {
  const Context context = current_context(own.mean.device());
  const float share = 1.0f / static_cast<float>(parts.count);
  const Tensor distance = context.workspace(own.mean.shape());
  kernels::copy(context, distance, own.mean);
  parts.sum(own.mean);
  kernels::scale(context, own.mean, own.mean, share);
  const Tensor opposite = context.workspace(own.mean.shape());
  kernels::scale(context, opposite, own.mean, -1);
  kernels::add(context, distance, distance, opposite);
  kernels::unary(context, distance, distance, Unary::square, Scalars{});
  kernels::add(context, own.variance, own.variance, distance);
  parts.sum(own.variance);
  kernels::scale(context, own.variance, own.variance, share);
}

Tensor normalize(const Statistics& statistics, const Tensor& x, const Tensor& weight,
                 const Tensor& bias, const Tensor& residual, BatchNormOptions options,
                 const BatchParts& parts) {
  const Context context = current_context(x.device());
  const Tensor rstd = Tensor::empty(weight.shape(), DType::f32, x.device());
  Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::batch_norm_rstd(context, rstd, statistics.variance, options.epsilon);
  kernels::batch_norm_forward(context, y, x, residual, statistics.mean, rstd, weight, bias,
                              options.relu);
  return record(
      "batch_norm", y, {x, weight, bias, residual},
      [x = saved(x), y = options.relu ? saved(y) : Tensor{}, mean = saved(statistics.mean), rstd,
       weight = saved(weight), rows = statistics.rows,
       parts](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&x, &weight});
        const Context here = current_context(dy.device());
        const auto wanted = [&grads](int input) {
          return grads.wanted(input) ? grads.destination(input) : Tensor{};
        };
        const bool of_x = rows > 0 && grads.wanted(0);  // true if dx is wanted and needs the sums
        Tensor sums, sum_g, sum_gn;
        if (of_x || grads.wanted(1) || grads.wanted(2)) {
          sums = here.workspace({2, rstd.elements()});
          sum_g = sums.flat(0, rstd.elements());
          sum_gn = sums.flat(rstd.elements(), sums.elements());
          kernels::batch_norm_backward_sums(here, sum_g, sum_gn, dy, y, x, mean, rstd);
        }
        // The gradients of weight and bias are sum_gn and sum_g of this part of the batch alone,
        // because the caller adds the parameters' gradients of all parts. dx needs sum_g and sum_gn
        // of the whole batch.
        if (grads.wanted(1)) kernels::convert(here, grads.destination(1), sum_gn);
        if (grads.wanted(2)) kernels::convert(here, grads.destination(2), sum_g);
        if (of_x && parts.count > 1) parts.sum(sums);
        const bool masked = y.defined();
        if (grads.wanted(3) && !masked) grads.pass(3, dy);
        const Tensor dresidual = masked ? wanted(3) : Tensor{};
        if (!grads.wanted(0) && !dresidual.defined()) return;
        const float factor = of_x ? 1.0f / static_cast<float>(rows) : 0.0f;
        kernels::batch_norm_backward(here, wanted(0), dresidual, dy, y, x, mean, rstd, weight,
                                     sum_g, sum_gn, factor);
      });
}

}  // namespace

BatchNorm batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                     const Tensor& residual, BatchNormOptions options, const BatchParts& parts) {
  const int64_t rows = check_batch_norm(x, weight, bias, residual);
  TESSERA_CHECK(parts.count == 1 || (parts.count > 1 && parts.sum),
                "batch_norm: {} parts {} a sum over them, expected 1 part, or several with a sum",
                parts.count, parts.sum ? "with" : "without");
  TESSERA_CHECK(x.elements() > 0 && rows * parts.count > 1,
                "batch_norm: x has shape {}, {} rows of channels; a variance needs more than one "
                "value per channel. batch_norm_with takes given statistics",
                x.shape(), rows);
  const trace::Scope scope("batch_norm");
  const InUse in_use({&x, &weight, &bias, &residual});
  const Statistics statistics{Tensor::empty(weight.shape(), DType::f32, x.device()),
                              Tensor::empty(weight.shape(), DType::f32, x.device()),
                              rows * parts.count};
  kernels::batch_norm_statistics(current_context(x.device()), statistics.mean, statistics.variance,
                                 x);
  if (parts.count > 1) average(statistics, parts);
  return {normalize(statistics, x, weight, bias, residual, options, parts), statistics.mean,
          statistics.variance};
}

Tensor batch_norm_with(const Tensor& mean, const Tensor& variance, const Tensor& x,
                       const Tensor& weight, const Tensor& bias, const Tensor& residual,
                       BatchNormOptions options) {
  check_batch_norm(x, weight, bias, residual);
  for (const Tensor& given : {mean, variance}) {
    TESSERA_CHECK(given.shape() == weight.shape() && given.dtype() == DType::f32,
                  "batch_norm: the given statistics are {} of dtype {}, expected {} of dtype f32",
                  given.shape(), dtype_name(given.dtype()), weight.shape());
  }
  const trace::Scope scope("batch_norm");
  const InUse in_use({&x, &weight, &bias, &residual, &mean, &variance});
  return normalize({mean, variance}, x, weight, bias, residual, options, {});
}

}  // namespace tessera::ops

namespace tessera::cpu {

/// Workspace: 16 bytes * max(1, chunks) * width (struct WideRows).
void batch_norm_statistics(const Context& context, const Tensor& mean, const Tensor& variance,
                           const Tensor& x) {
  const int64_t channels = mean.elements();
  const WideRows wide(x.elements(), channels);
  const Tensor memory = context.workspace({std::max<int64_t>(1, wide.chunks), 4, wide.width});
  const auto moments = [&](int64_t chunk, int64_t half) {
    float* at = memory.data<float>() + (chunk * 4 + half * 2) * wide.width;
    return Moments{at, at + wide.width};
  };
  Moments total = moments(0, 0);
  total.clear(channels);
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    wide.parallel_chunks(4, [&](int64_t chunk, int64_t first) {
      Moments sums = moments(chunk, 0);
      sums.clear(wide.width);
      sums.merge_rows(x.data<T>() + first * wide.width, wide.rows_of(chunk, 1), wide.width,
                      moments(chunk, 1));
    });
    merge_pairs(wide.chunks, [&](int64_t into, int64_t from, int64_t some) {
      Moments sums = moments(into, 0), more = moments(from, 0);
      sums.rows = wide.rows_of(into, some);
      more.rows = wide.rows_of(from, some);
      sums.merge(more, wide.width);
    });
    if (wide.count > 0) {
      merge_pairs(wide.fold, [&](int64_t into, int64_t from, int64_t some) {
        const auto columns = [&](int64_t part) {
          return Moments{total.mean + part * channels, total.squares + part * channels,
                         std::min(some, wide.fold - part) * wide.count};
        };
        columns(into).merge(columns(from), channels);
      });
    }
    total.rows = wide.count * wide.fold;
    total.merge_rows(x.data<T>() + wide.count * wide.width, wide.left_over, channels,
                     moments(0, 1));
  });
  std::copy_n(total.mean, channels, mean.data<float>());
  for (int64_t c = 0; c < channels; ++c) {
    variance.data<float>()[c] = total.squares[c] / static_cast<float>(total.rows);
  }
}

void batch_norm_rstd(const Context&, const Tensor& rstd, const Tensor& variance, float epsilon) {
  for (int64_t c = 0; c < rstd.elements(); ++c) {
    rstd.data<float>()[c] = 1.0f / std::sqrt(variance.data<float>()[c] + epsilon);
  }
}

/// Workspace: 12 bytes * width.
void batch_norm_forward(const Context& context, const Tensor& y, const Tensor& x,
                        const Tensor& residual, const Tensor& mean, const Tensor& rstd,
                        const Tensor& weight, const Tensor& bias, bool relu) {
  const WideRows wide(x.elements(), mean.elements());
  const Tensor memory = context.workspace({3, wide.width});
  float* centre = memory.data<float>();
  float* scale = centre + wide.width;
  float* shift = scale + wide.width;
  const float lowest = relu ? 0.0f : -std::numeric_limits<float>::infinity();
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    fill_columns(centre, wide, [&](int64_t c) { return mean.data<float>()[c]; });
    fill_columns(scale, wide, [&](int64_t c) {
      return rstd.data<float>()[c] * float(weight.data<T>()[c]);
    });
    fill_columns(shift, wide, [&](int64_t c) { return float(bias.data<T>()[c]); });
    const T* more = residual.defined() ? residual.data<T>() : nullptr;
    wide.parallel_rows(4, [&, in = x.data<T>(), out = y.data<T>()](int64_t first,
                                                                   int64_t columns) {
      const auto normalized = [=, row = in + first](int64_t i) {
        return multiply_add(float(row[i]) - centre[i], scale[i], shift[i]);
      };
      const auto bounded = [=](float value) { return value < lowest ? lowest : value; };
      T* to = out + first;
      if (more == nullptr) {
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) to[i] = rounded<T>(bounded(normalized(i)));
      } else {
        const T* added = more + first;
#pragma omp simd
        for (int64_t i = 0; i < columns; ++i) {
          to[i] = rounded<T>(bounded(normalized(i) + float(added[i])));
        }
      }
    });
  });
}

namespace {

/// g(i) = dy[i]. If `masked`, this holds only where y[i] > 0, and g(i) is 0 elsewhere.
template <class T, bool masked>
struct Masked {
  const T* dy;
  const T* y;
  float operator()(int64_t i) const {
    const float value = float(dy[i]);
    if constexpr (!masked) return value;
    return float(y[i]) > 0 ? value : 0.0f;
  }
};

/// Calls body(g), where g is a Masked<T, true> if y is defined, else a Masked<T, false>.
template <class T, class Body>
void visit_masked(const Tensor& dy, const Tensor& y, Body&& body) {
  if (y.defined()) {
    body(Masked<T, true>{dy.data<T>(), y.data<T>()});
  } else {
    body(Masked<T, false>{dy.data<T>(), nullptr});
  }
}

/// sum_g (columns) += g, sum_gd += g * (x - centre), over `rows` rows from element `first` on.
template <class T, class G>
void add_gradients(float* sum_g, float* sum_gd, const G& g, const T* x, const float* centre,
                   int64_t first, int64_t rows, int64_t columns) {
  const auto add = [=]<int some>(int64_t at) {
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      float total = 0, product = 0;
      for (int k = 0; k < some; ++k) {
        const int64_t element = at + k * columns + i;
        const float value = g(element);
        total += value;
        product = multiply_add(value, float(x[element]) - centre[i], product);
      }
      sum_g[i] += total;
      sum_gd[i] += product;
    }
  };
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) add.template operator()<4>(first + r * columns);
  for (; r < rows; ++r) add.template operator()<1>(first + r * columns);
}

}  // namespace

/// Workspace: 8 bytes * max(1, chunks) * width, and 4 bytes * width.
void batch_norm_backward_sums(const Context& context, const Tensor& sum_g, const Tensor& sum_gn,
                              const Tensor& dy, const Tensor& y, const Tensor& x,
                              const Tensor& mean, const Tensor& rstd) {
  const int64_t channels = mean.elements();
  const WideRows wide(x.elements(), channels);
  const int64_t width = wide.width;
  const Tensor memory = context.workspace({std::max<int64_t>(1, wide.chunks), 2, width});
  const Tensor centres = context.workspace({width});
  float* sums = memory.data<float>();
  float* centre = centres.data<float>();
  fill_columns(centre, wide, [&](int64_t c) { return mean.data<float>()[c]; });
  std::fill_n(sums, memory.elements(), 0.0f);
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    visit_masked<T>(dy, y, [&](const auto& g) {
      wide.parallel_chunks(4, [&](int64_t chunk, int64_t first) {
        float* to = sums + chunk * 2 * width;
        add_gradients(to, to + width, g, x.data<T>(), centre, first * width,
                      wide.rows_of(chunk, 1), width);
      });
      merge_pairs(wide.chunks, [&](int64_t into, int64_t from, int64_t) {
        const float* more = sums + from * 2 * width;
        add_rows(sums + into * 2 * width, 1, 2 * width,
                 [=](int64_t, int64_t i) { return more[i]; });
      });
      for (float* half : {sums, sums + width}) {
        merge_pairs(wide.fold, [&](int64_t into, int64_t from, int64_t) {
          const float* more = half + from * channels;
          add_rows(half + into * channels, 1, channels,
                   [=](int64_t, int64_t i) { return more[i]; });
        });
      }
      add_gradients(sums, sums + width, g, x.data<T>(), centre, wide.count * width,
                    wide.left_over, channels);
    });
  });
  std::copy_n(sums, channels, sum_g.data<float>());
  for (int64_t c = 0; c < channels; ++c) {
    sum_gn.data<float>()[c] = sums[width + c] * rstd.data<float>()[c];
  }
}

/// Computes dx as by_g * g + by_x * (x - mean) + shift. The factors of a column are computed once,
/// from the formula in batch_norm.h. Workspace: 16 bytes * width.
void batch_norm_backward(const Context& context, const Tensor& dx, const Tensor& dresidual,
                         const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& mean,
                         const Tensor& rstd, const Tensor& weight, const Tensor& sum_g,
                         const Tensor& sum_gn, float factor) {
  const WideRows wide(x.elements(), mean.elements());
  const Tensor memory = context.workspace({4, wide.width});
  float* centre = memory.data<float>();
  float* by_g = centre + wide.width;
  float* by_x = by_g + wide.width;
  float* shift = by_x + wide.width;
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    const auto scale = [&](int64_t c) {
      return rstd.data<float>()[c] * float(weight.data<T>()[c]);
    };
    const auto mean_of = [&](const Tensor& sum, int64_t c) {
      return factor == 0 ? 0.0f : sum.data<float>()[c] * factor;
    };
    fill_columns(centre, wide, [&](int64_t c) { return mean.data<float>()[c]; });
    fill_columns(by_g, wide, scale);
    fill_columns(by_x, wide, [&](int64_t c) {
      return -scale(c) * rstd.data<float>()[c] * mean_of(sum_gn, c);
    });
    fill_columns(shift, wide, [&](int64_t c) { return -scale(c) * mean_of(sum_g, c); });
    const T* in = x.data<T>();
    T* to_x = dx.defined() ? dx.data<T>() : nullptr;
    T* to_residual = dresidual.defined() ? dresidual.data<T>() : nullptr;
    visit_masked<T>(dy, y, [&](auto g) {
      wide.parallel_rows(6, [=](int64_t first, int64_t columns) {
        if (to_residual != nullptr) {
#pragma omp simd
          for (int64_t i = 0; i < columns; ++i) to_residual[first + i] = rounded<T>(g(first + i));
        }
        if (to_x != nullptr) {
#pragma omp simd
          for (int64_t i = 0; i < columns; ++i) {
            const float centred = float(in[first + i]) - centre[i];
            const float others = multiply_add(by_x[i], centred, shift[i]);
            to_x[first + i] = rounded<T>(multiply_add(by_g[i], g(first + i), others));
          }
        }
      });
    });
  });
}

}  // namespace tessera::cpu
