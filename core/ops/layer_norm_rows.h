// Shared by layer_norm and residual_layer_norm: the checks and the loops over one row. batch_norm
// uses the checks too.
#pragma once

#include <cmath>
#include <cstdint>
#include <string_view>

#include "core/cpu/vector_math.h"
#include "core/tensor.h"

namespace tessera::ops {

/// Throws unless x is (..., C), weight and bias are (C), and all have one dtype. Returns the number
/// of rows of x.
inline int64_t checked_norm_rows(std::string_view operation, const Tensor& x, const Tensor& weight,
                                 const Tensor& bias) {
  TESSERA_CHECK(x.rank() >= 1, "{}: x is a scalar, expected (..., C)", operation);
  const Shape expected{x.size(-1)};
  TESSERA_CHECK(weight.shape() == expected, "{}: weight has shape {}, expected {}", operation,
                weight.shape(), expected);
  TESSERA_CHECK(bias.shape() == expected, "{}: bias has shape {}, expected {}", operation,
                bias.shape(), expected);
  TESSERA_CHECK(weight.dtype() == x.dtype() && bias.dtype() == x.dtype(),
                "{}: weight and bias have dtypes {} and {}, expected {}", operation,
                dtype_name(weight.dtype()), dtype_name(bias.dtype()), dtype_name(x.dtype()));
  int64_t rows = 1;
  for (int i = 0; i < x.rank() - 1; ++i) rows *= x.size(i);
  return rows;
}

/// Gives y = layer_norm(x) a function that recomputes y. An operation that reads y in its backward
/// then does not have to keep y.
void offer_recompute(Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias,
                     int64_t rows, float epsilon);

}  // namespace tessera::ops

namespace tessera::cpu {

struct RowStatistics {
  float mean;
  float rstd;  // 1 / sqrt(variance + epsilon)
};

template <class T>
float row_total(const T* x, int64_t channels) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < channels; ++i) total += float(x[i]);
  return total;
}

template <class T>
float row_variance(const T* x, int64_t channels, float mean) {
  float squares = 0;
#pragma omp simd reduction(+ : squares)
  for (int64_t i = 0; i < channels; ++i) {
    const float centred = float(x[i]) - mean;
    squares += centred * centred;
  }
  return squares / static_cast<float>(channels);
}

/// Returns the mean of the elements' differences from `mean`, which is the rounding error of `mean`
/// with the opposite sign.
template <class T>
float mean_correction(const T* x, int64_t channels, float mean) {
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < channels; ++i) total += float(x[i]) - mean;
  return total / static_cast<float>(channels);
}

/// Returns the mean and rstd of a row whose elements add up to `total`. Computes the variance in a
/// second pass over the row. Unless the row is very long, it is in the L1 cache by then. A single
/// pass would suffer from cancellation.
///
/// The mean has the rounding error of `total`. If 1 / rstd is less than 1/1024 of the mean's
/// magnitude, this error can be visible in the normalized row: for instance, a row of equal
/// elements would not become zero. So the mean of such a row is corrected. The correction is
/// accurate, because the elements' differences from the mean are small.
template <class T>
RowStatistics row_statistics(float total, const T* x, int64_t channels, float epsilon) {
  float mean = total / static_cast<float>(channels);
  float variance = row_variance(x, channels, mean);
  if ((variance + epsilon) * 0x1p20f < mean * mean) {
    mean += mean_correction(x, channels, mean);
    variance = row_variance(x, channels, mean);
  }
  return {mean, 1.0f / std::sqrt(variance + epsilon)};
}

/// y = (x - mean) * rstd * weight + bias
template <class T>
void normalize_row(T* y, const T* x, const T* weight, const T* bias, RowStatistics row,
                   int64_t channels) {
#pragma omp simd
  for (int64_t i = 0; i < channels; ++i) {
    const float normalized = (float(x[i]) - row.mean) * row.rstd;
    y[i] = rounded<T>(multiply_add(normalized, float(weight[i]), float(bias[i])));
  }
}

}  // namespace tessera::cpu
