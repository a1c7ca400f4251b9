// Compares the gradients of an operation with finite differences, for tests of your own operations:
//
//   REQUIRE(check_gradient([](const auto& in) { return ops::mul(in[0], in[1]); }, {a, b}));
//
// The operation's output is contracted with fixed pseudo-random weights to a scalar. The scalar's
// derivative with respect to each element of each input is computed twice: by backward(), and by a
// fourth-order central difference of the f32 forward. The error is the difference of these two
// derivatives, relative to the largest derivative with respect to the same input, or to 0.1 if 0.1
// is larger.
//
// With a 16-bit dtype, backward() runs on the inputs rounded to that dtype, but the central
// difference still uses the f32 forward, at the rounded values. So the operation is called with
// 16-bit and with f32 inputs, and must convert all other tensors that it uses to the dtype of `in`.
#pragma once

#include <functional>
#include <ostream>
#include <vector>

#include "core/tensor.h"

namespace tessera {

struct GradientCheck {
  /// The largest error of any element. An error is relative to the largest derivative with respect
  /// to the element's input, or to 0.1 if 0.1 is larger.
  double error = 0;
  double tolerance = 0;
  size_t input = 0;       // the index of the input with the largest error
  int64_t element = 0;    // the index of that input's element with the largest error
  double backward = 0;    // the derivative with respect to that element, from backward()
  double difference = 0;  // the derivative with respect to that element, from finite differences

  explicit operator bool() const { return error <= tolerance; }
};

std::ostream& operator<<(std::ostream& out, const GradientCheck& check);

struct GradientCheckOptions {
  float step = 0.03125f;  // finite differences have an error of about step^4 + 1e-7 / step
  double tolerance = 1e-3;
  DType dtype = DType::f32;
  /// The number of roundings to a 16-bit `dtype` between input and gradient. Each of them widens
  /// the tolerance. With f32 the number has no effect.
  int roundings = 2;
};

/// Checks the gradients at `inputs`, which are f32 and on any device. The operation is called once
/// for backward(), and four times per input element for the differences. For the differences, one
/// element at a time is changed and then restored exactly. With f32 this is done in the memory of
/// `inputs`, with a 16-bit dtype in copies. Throws if the operation's backward passes a gradient of
/// another dtype than `options.dtype` to an input.
GradientCheck check_gradient(const std::function<Tensor(const std::vector<Tensor>&)>& operation,
                             const std::vector<Tensor>& inputs, GradientCheckOptions options = {});

}  // namespace tessera
