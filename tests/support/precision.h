// Helpers for tests over dtypes. Inputs are rounded to the dtype, and the float64 reference is
// computed from the rounded inputs. Tolerances therefore need not cover the rounding of inputs.
//
//   const DType dtype = GENERATE(from_range(float_dtypes()));
//   const Tensor x = random_tensor_of(dtype, {8, 16}, 1);
//   CHECK(relative_error(ops::gelu(x), gelu(doubles(x))) < tolerance(dtype));
#pragma once

#include <vector>

#include "tests/support/tensors.h"

namespace tessera::test {

inline std::vector<DType> float_dtypes() { return {DType::f32, DType::bf16, DType::f16}; }
inline std::vector<DType> half_dtypes() { return {DType::bf16, DType::f16}; }

/// Unit roundoff: the largest relative error of one rounding to nearest.
inline double precision_of(DType dtype) {
  return dtype == DType::bf16 ? 0x1p-8 : dtype == DType::f16 ? 0x1p-11 : 0x1p-24;
}

/// Returns the tolerance of a result. `f32_error` is the relative error of the computation in f32.
/// `roundings` is the number of times that the result is rounded to `dtype`.
inline double tolerance(DType dtype, int roundings = 1, double f32_error = 1e-5) {
  return f32_error + (dtype == DType::f32 ? 0 : roundings * precision_of(dtype));
}

/// Returns the values of an f32 tensor, each rounded to `dtype`.
inline Tensor rounded_to(DType dtype, const Tensor& x) {
  const Tensor result = Tensor::empty(x.shape(), dtype);
  visit_float(dtype, "rounded_to", [&]<class T>() {
    for (int64_t i = 0; i < x.elements(); ++i) result.data<T>()[i] = T(x.data<float>()[i]);
  });
  return result;
}

/// Returns a tensor's values in f32.
inline Tensor widened(const Tensor& x) {
  const Tensor result = Tensor::empty(x.shape());
  visit_float(x.dtype(), "widened", [&]<class T>() {
    for (int64_t i = 0; i < x.elements(); ++i) result.data<float>()[i] = float(x.data<T>()[i]);
  });
  return result;
}

/// Returns random_tensor() rounded to `dtype`.
inline Tensor random_tensor_of(DType dtype, const Shape& shape, uint64_t seed, float low = -1,
                               float high = 1) {
  return rounded_to(dtype, random_tensor(shape, seed, low, high));
}

/// Copies x (R, C) into rows of `stride` elements. `filler` fills the rest of each row.
inline Tensor padded(const Tensor& x, int64_t stride, float filler) {
  const Tensor result = Tensor::empty({x.size(0), stride}, x.dtype());
  visit_float(x.dtype(), "padded", [&]<class T>() {
    for (int64_t i = 0; i < result.elements(); ++i) {
      const int64_t row = i / stride, column = i % stride;
      result.data<T>()[i] =
          column < x.size(1) ? x.data<T>()[row * x.size(1) + column] : T(filler);
    }
  });
  return result;
}

struct WithoutPadding {
  Tensor rows;
  std::vector<double> behind;  // the padding: each row's elements after the first `columns`
};
inline WithoutPadding without_padding(const Tensor& x, int64_t columns) {
  WithoutPadding result{Tensor::empty({x.size(0), columns}, x.dtype()), {}};
  visit_float(x.dtype(), "without_padding", [&]<class T>() {
    for (int64_t i = 0; i < x.elements(); ++i) {
      const int64_t row = i / x.size(1), column = i % x.size(1);
      const T value = x.data<T>()[i];
      if (column < columns) result.rows.data<T>()[row * columns + column] = value;
      else result.behind.push_back(double{float(value)});
    }
  });
  return result;
}

}  // namespace tessera::test
