// Compares the gradients of an operation with finite differences, for tests of operations of one's
// own:
//
//   REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[1]); }, {a, b}));
//
// The operation's output is contracted with fixed pseudo-random weights to a scalar. Its derivative
// by each element of each input is taken by backward() and by a fourth-order central difference of
// the f32 forward, and the two are compared relative to the input's largest derivative.
//
// With a dtype of 16 bits, backward() runs on the inputs rounded to it, and the difference is still
// that of the f32 forward, at the same values. An operation that takes other tensors too takes them
// in the dtype of `in`.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "core/tensor.h"

namespace tessera {

struct GradientCheck {
  double error = 0;  // the largest, relative to the largest derivative by the same input
  double tolerance = 0;
  size_t input = 0;  // where the largest error is
  int64_t element = 0;
  double backward = 0;
  double difference = 0;

  explicit operator bool() const { return error <= tolerance; }
};

std::ostream& operator<<(std::ostream& out, const GradientCheck& check);

struct GradientCheckOptions {
  float step = 0.03125f;  // the error of the differences is about step^4 and 1e-7 / step
  double tolerance = 1e-3;
  DType dtype = DType::f32;
  int roundings = 2;  // to that dtype, between an input and a gradient: they widen the tolerance
};

/// `inputs` are f32, on any device. The operation is called four times for each of their elements,
/// with tensors that are the inputs themselves (or, with a dtype of 16 bits, copies): values are
/// moved where they lie, and restored bit by bit. A gradient that does not have its input's dtype
/// fails.
GradientCheck check_gradient(const std::function<Tensor(const std::vector<Tensor>&)>& operation,
                             const std::vector<Tensor>& inputs, GradientCheckOptions options = {});

}  // namespace tessera
