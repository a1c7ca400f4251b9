// Compares the gradients of an operation with finite differences, for tests of your own operations:
//
//   REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[1]); }, {a, b}));
//
// The operation's output is contracted with fixed pseudo-random weights to a scalar. Its derivative
// by each element of each input is taken by backward() and by a fourth-order central difference of
// the f32 forward, and the two are compared relative to the input's largest derivative.
//
// With a 16-bit dtype, backward() runs on the inputs rounded to that dtype. The differences are
// still those of the f32 forward, at the rounded values. Other tensors that the operation uses must
// have the dtype of `in`.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "core/tensor.h"

namespace tessera {

struct GradientCheck {
  double error = 0;  // the largest error, relative to the largest derivative by that input
  double tolerance = 0;
  size_t input = 0;  // where the largest error is
  int64_t element = 0;
  double backward = 0;    // the derivative there by backward()
  double difference = 0;  // the derivative there by finite differences

  explicit operator bool() const { return error <= tolerance; }
};

std::ostream& operator<<(std::ostream& out, const GradientCheck& check);

struct GradientCheckOptions {
  float step = 0.03125f;  // the error of the differences is about step^4 + 1e-7 / step
  double tolerance = 1e-3;
  DType dtype = DType::f32;
  int roundings = 2;  // to `dtype`, on the way from input to gradient; they widen the tolerance
};

/// Checks the gradients at `inputs`, which are f32 and on any device. The operation is called four
/// times per input element. It is given the inputs themselves (with a 16-bit dtype, copies), in
/// which one element at a time is changed in place and restored bit by bit. A gradient that does
/// not have its input's dtype fails the check.
GradientCheck check_gradient(const std::function<Tensor(const std::vector<Tensor>&)>& operation,
                             const std::vector<Tensor>& inputs, GradientCheckOptions options = {});

}  // namespace tessera
