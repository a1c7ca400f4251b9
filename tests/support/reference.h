// Helpers for tests that compare operations with references in float64.
#pragma once

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "core/random.h"
#include "tests/support/tensors.h"

namespace tessera::test {

using Values = std::vector<double>;

/// Returns random i32 values in [0, bound).
inline Tensor random_indices(const Shape& shape, uint64_t seed, int64_t bound) {
  Tensor x = Tensor::empty(shape, DType::i32);
  RandomStream stream(seed, "test", 1);
  for (int32_t& value : x.values<int32_t>()) {
    value = static_cast<int32_t>(stream.below(static_cast<uint64_t>(bound)));
  }
  return x;
}

/// Returns a tensor that shares x's memory and is a leaf: its gradient is in leaf()->gradient.
inline Tensor as_parameter(const Tensor& x) {
  Tensor parameter = x.detach();
  parameter.set_leaf(std::make_shared<Leaf>());
  return parameter;
}

/// A parameter that has memory only while an operation uses it, as at ZeRO stage 3. Reading the
/// parameter throws unless the operation has announced the use (Leaf::about_to_be_used). `uses` is
/// the number of announcements.
class GatheredParameter {
 public:
  explicit GatheredParameter(const Tensor& x) : tensor(as_parameter(x)), storage_(x.storage()) {
    tensor.attach(nullptr, 0);
    tensor.leaf()->about_to_be_used = [this] {
      ++uses;
      if (users_++ == 0) tensor.attach(storage_, 0);
    };
    tensor.leaf()->no_longer_used = [this] {
      if (--users_ == 0) tensor.attach(nullptr, 0);
    };
  }
  GatheredParameter(const GatheredParameter&) = delete;
  GatheredParameter& operator=(const GatheredParameter&) = delete;

  Tensor gradient() const { return tensor.leaf()->gradient; }

  Tensor tensor;
  int uses = 0;

 private:
  std::shared_ptr<Storage> storage_;
  int users_ = 0;
};

/// Runs backward from y with the gradient dy.
inline void backward_from(const Tensor& y, const Tensor& dy) {
  backward(ops::sum(ops::mul(y, dy)));
}

inline Values values_of(const Tensor& x) { return doubles(x); }

/// Returns the larger of two differences, or infinity if `difference` is NaN. std::max would ignore
/// the NaN, because the comparison largest < NaN is false.
inline double larger_difference(double largest, double difference) {
  return std::isnan(difference) ? INFINITY : std::max(largest, difference);
}

/// Returns the largest difference divided by the largest expected magnitude. Returns infinity if
/// the sizes differ or a difference is NaN.
inline double relative_error(const Tensor& actual, const Values& expected) {
  const Values values = values_of(actual);
  if (values.size() != expected.size()) return INFINITY;
  double largest = 1e-30;
  double difference = 0;
  for (size_t i = 0; i < values.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    difference = larger_difference(difference, std::fabs(values[i] - expected[i]));
  }
  return difference / largest;
}

/// Returns c (m, n) = a (m, k) b (k, n). Each operand may be stored transposed.
inline Values product(const Values& a, const Values& b, int64_t m, int64_t n, int64_t k,
                      bool transpose_a = false, bool transpose_b = false) {
  Values c(static_cast<size_t>(m * n), 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t l = 0; l < k; ++l) {
        sum += a[static_cast<size_t>(transpose_a ? l * m + i : i * k + l)] *
               b[static_cast<size_t>(transpose_b ? j * k + l : l * n + j)];
      }
      c[static_cast<size_t>(i * n + j)] = sum;
    }
  }
  return c;
}

/// Restores the number of threads at the end of a test.
class ThreadCountRestorer {
 public:
  ~ThreadCountRestorer() { set_thread_count(before_); }

 private:
  int before_ = thread_count();
};

}  // namespace tessera::test
