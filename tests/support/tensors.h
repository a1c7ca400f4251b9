// Small helpers for tests of operations: inputs, leaves, and comparisons.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/autograd.h"
#include "core/context.h"
#include "core/random.h"
#include "core/tensor.h"

namespace tessera::test {

/// Returns the context of the device that the test runs on.
inline Context test_context() { return current_context(default_device()); }

/// Returns random f32 values between `low` and `high`. A value depends only on these bounds, on the
/// seed, and on the value's index.
inline Tensor random_tensor(const Shape& shape, uint64_t seed, float low = -1, float high = 1) {
  Tensor result = Tensor::empty(shape);
  uint32_t element = 0;
  for (float& value : result.values<float>()) {
    const uint32_t word = philox({element++, 0, 0, 0}, philox_key(seed))[0];
    value = low + (high - low) * uniform_float(word);
  }
  return result;
}

/// Makes the tensor a leaf of the graph. After backward(), gradient_of() returns its gradient.
inline Tensor leaf(Tensor tensor, const std::string& name = "leaf") {
  auto end = std::make_shared<Leaf>();
  end->name = name;
  tensor.set_leaf(std::move(end));
  return tensor;
}
inline Tensor gradient_of(const Tensor& tensor) { return tensor.leaf()->gradient; }

/// Returns the elements of a tensor of any floating-point dtype.
inline std::vector<double> doubles(const Tensor& tensor) {
  std::vector<double> result;
  visit_float(tensor.dtype(), "doubles", [&]<class T>() {
    for (const T value : tensor.values<T>()) result.push_back(double{float(value)});
  });
  return result;
}

/// Returns the largest |actual - expected| / max(1, |expected|). Returns infinity if the sizes
/// differ or a value is NaN.
inline double max_error(const Tensor& actual, const std::vector<double>& expected) {
  const std::vector<double> values = doubles(actual);
  if (values.size() != expected.size()) return HUGE_VAL;
  double result = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double error = std::abs(values[i] - expected[i]) / std::max(1.0, std::abs(expected[i]));
    if (!(error <= result)) result = std::isnan(error) ? HUGE_VAL : error;
  }
  return result;
}

inline bool same_bits(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && a.dtype() == b.dtype() &&
         (a.bytes() == 0 || std::memcmp(a.raw(), b.raw(), static_cast<size_t>(a.bytes())) == 0);
}

/// True if `compute` gives the same bits with 1, 2, 3 and 5 threads.
inline bool same_bits_for_any_threads(const std::function<std::vector<Tensor>()>& compute) {
  const int before = thread_count();
  set_thread_count(1);
  const std::vector<Tensor> expected = compute();
  bool same = true;
  for (const int threads : {2, 3, 5}) {
    set_thread_count(threads);
    const std::vector<Tensor> actual = compute();
    same = same && actual.size() == expected.size();
    for (size_t i = 0; same && i < actual.size(); ++i) same = same_bits(actual[i], expected[i]);
  }
  set_thread_count(before);
  return same;
}

}  // namespace tessera::test
