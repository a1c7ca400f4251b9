// Lesson 2: a linear layer with its gradient, and a hook on the completion of gradients. All
// tensors are f32 and row-major: x (R, in), W (in, out), b (out), y (R, out).
#pragma once

#include <functional>
#include <string>

#include "core/autograd.h"
#include "nn/module.h"

namespace course {

using namespace tessera;

/// Returns element (row, column) of a matrix, to read or to write.
inline float& at(const Tensor& matrix, int64_t row, int64_t column) {
  const int64_t rows = matrix.size(0);
  const int64_t columns = matrix.size(1);
  TESSERA_CHECK(row >= 0 && row < rows && column >= 0 && column < columns,
                "at: element ({}, {}) of a matrix of shape {}", row, column, matrix.shape());
  return matrix.data<float>()[row * columns + column];
}

/// Overwrites a matrix: element (i, j) becomes the sum of term(i, j, k) over k = 0 ... terms - 1.
template <class Term>
void fill_with_sums(const Tensor& matrix, int64_t terms, Term term) {
  for (int64_t i = 0; i < matrix.size(0); ++i) {
    for (int64_t j = 0; j < matrix.size(1); ++j) {
      float sum = 0;
      for (int64_t k = 0; k < terms; ++k) sum += term(i, j, k);
      at(matrix, i, j) = sum;
    }
  }
}

// Each of the next four functions overwrites its first argument, whose old values do not matter.
/// y = x W + b. If `bias` is undefined, the layer has no bias.
void multiply(const Tensor& y, const Tensor& x, const Tensor& weight, const Tensor& bias);
/// dx = dy W^T.
void input_gradient(const Tensor& dx, const Tensor& dy, const Tensor& weight);
/// dW = x^T dy.
void weight_gradient(const Tensor& dweight, const Tensor& x, const Tensor& dy);
/// db = the sum of dy's rows.
void bias_gradient(const Tensor& dbias, const Tensor& dy);

/// The operation's name. Pass it to record(), because the lesson's check looks for this name.
inline constexpr const char* operation = "my linear";

/// Returns y = x W + b, and records the gradient. An input may be a parameter that has memory only
/// while an InUse of it exists, so create an InUse of the inputs before they are read, in forward
/// and in backward.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias);

/// Sets hooks on the model's parameters. Each later backward calls `call(name)` once for each
/// parameter that gets a gradient, when this gradient is complete. Names are those of
/// model.named_parameters().
void on_complete(nn::Module& model, std::function<void(const std::string& name)> call);

}  // namespace course
