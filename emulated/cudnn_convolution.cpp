// The arithmetic of the emulated cuDNN.
#include <vector>

#include "core/half.h"
#include "emulated/cudnn.h"

namespace emulated::cudnn {

using tessera::BFloat16;
using tessera::Float16;
using tessera::rounded;

namespace {

template <class Body>
void with_type(cudnnDataType_t type, Body&& body) {
  switch (type) {
    case CUDNN_DATA_FLOAT: return body.template operator()<float>();
    case CUDNN_DATA_BFLOAT16: return body.template operator()<BFloat16>();
    case CUDNN_DATA_HALF: return body.template operator()<Float16>();
  }
}

std::vector<float> widened(const void* data, const cudnnTensorStruct& desc) {
  std::vector<float> result(static_cast<size_t>(desc.elements()));
  with_type(desc.type, [&]<class T>() {
    const T* from = static_cast<const T*>(data);
    float* to = result.data();
#pragma omp simd
    for (int64_t i = 0; i < desc.elements(); ++i) to[i] = float(from[i]);
  });
  return result;
}

/// Calls body(x, w, y) for each element of y and each tap (position in the filter) that lies inside
/// the image. The arguments are offsets:
///  - x: the input pixel under the tap, at the first channel of the filter's group;
///  - w: the filter's first channel at the tap;
///  - y: the element of y.
/// In the forward pass, an element of y is the sum of x * w over its taps and the group's channels.
template <class Body>
void for_each_product(const Problem& p, Body&& body) {
  const auto& [is_set, pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w, groups, math] =
      p.convolution;
  const int64_t filters = p.y.c / groups;  // per group
  for (int64_t pixel = 0; pixel < p.y.n * p.y.h * p.y.w; ++pixel) {
    const int64_t n = pixel / p.y.w / p.y.h;
    const int64_t top = pixel / p.y.w % p.y.h * stride_h - pad_h;
    const int64_t left = pixel % p.y.w * stride_w - pad_w;
    for (int64_t tap = 0; tap < p.w.h * p.w.w; ++tap) {
      const int64_t row = top + tap / p.w.w * dilation_h;
      const int64_t column = left + tap % p.w.w * dilation_w;
      if (row < 0 || row >= p.x.h || column < 0 || column >= p.x.w) continue;
      const int64_t from = ((n * p.x.h + row) * p.x.w + column) * p.x.c;
      for (int64_t k = 0; k < p.y.c; ++k) {
        body(from + k / filters * p.w.c, (k * p.w.h * p.w.w + tap) * p.w.c, pixel * p.y.c + k);
      }
    }
  }
}

std::vector<float> sums(const Problem& p, const Addresses& at) {
  std::vector<float> result(static_cast<size_t>(p.result().elements()));
  const auto operand = [&](Pass computed, const void* data, const cudnnTensorStruct& desc) {
    return p.pass == computed ? std::vector<float>() : widened(data, desc);
  };
  const auto x = operand(Pass::data, at.x, p.x), w = operand(Pass::filter, at.w, p.w),
             y = operand(Pass::forward, at.y, p.y);
  const int64_t channels = p.w.c;
  const auto add_scaled = [channels](float* to, const float* from, float factor) {
#pragma omp simd
    for (int64_t i = 0; i < channels; ++i) to[i] += factor * from[i];
  };
  switch (p.pass) {
    case Pass::forward:
      for_each_product(p, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
        const float *a = x.data() + x_at, *b = w.data() + w_at;
        float sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < channels; ++i) sum += a[i] * b[i];
        result[static_cast<size_t>(y_at)] += sum;
      });
      break;
    case Pass::data:
      for_each_product(p, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
        add_scaled(result.data() + x_at, w.data() + w_at, y[static_cast<size_t>(y_at)]);
      });
      break;
    case Pass::filter:
      for_each_product(p, [&](int64_t x_at, int64_t w_at, int64_t y_at) {
        add_scaled(result.data() + w_at, x.data() + x_at, y[static_cast<size_t>(y_at)]);
      });
      break;
  }
  return result;
}

}  // namespace

void compute(const Problem& problem, const Addresses& at, float alpha, float beta) {
  const std::vector<float> values = sums(problem, at);
  with_type(problem.result().type, [&]<class T>() {
    T* to = static_cast<T*>(at.result);
    for (size_t i = 0; i < values.size(); ++i) {
      const float value = alpha * values[i];
      to[i] = rounded<T>(beta == 0.0f ? value : value + beta * float(to[i]));
    }
  });
}

}  // namespace emulated::cudnn
