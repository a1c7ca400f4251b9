// Losses and cosine_similarity, composed of other operations, which record the gradients.
#include <limits>

#include "core/image_ops.h"
#include "core/ops.h"
#include "core/ops/broadcast.h"
#include "core/ops/dimensions.h"

namespace tessera::ops {

Tensor mse_loss(const Tensor& a, const Tensor& b) { return mean(square(a - b)); }

Tensor hinge_loss(const Tensor& scores, const Tensor& targets) {
  return mean(relu(1.0f - scores * targets));
}

namespace {

constexpr float infinity = std::numeric_limits<float>::infinity();

/// `dim` is a dimension of the shape that a and b are broadcast to. Throws unless both a and b have
/// this dimension, with equally many elements. Returns `dim` counted from the end: -1 is the last
/// dimension.
int compared_dimension(const char* name, const Tensor& a, const Tensor& b, int dim) {
  const Shape shape = broadcast_shape(name, a.shape(), b.shape());
  const int from_last = dimension(name, shape, dim) - shape.rank();
  const auto extent = [from_last](const Tensor& x) {
    return x.rank() + from_last < 0 ? 1 : x.size(from_last);
  };
  TESSERA_CHECK(extent(a) == extent(b) && a.rank() + from_last >= 0 && b.rank() + from_last >= 0,
                "{}: shapes {} and {} have {} and {} elements in dimension {}, expected this "
                "dimension in both, with equally many elements",
                name, a.shape(), b.shape(), extent(a), extent(b), dim);
  return from_last;
}

}  // namespace

Tensor cosine_similarity(const Tensor& a, const Tensor& b, int dim, float epsilon) {
  const int from_last = compared_dimension("cosine_similarity", a, b, dim);
  // Backward multiplies a gradient by 1 / smallest, which is at most 1e30 and leaves room in f32.
  TESSERA_CHECK(epsilon >= 1e-15f && epsilon <= 1e19f,
                "cosine_similarity: epsilon is {}, expected 1e-15 to 1e19", epsilon);
  const float smallest = epsilon * epsilon;  // lower bound of a squared length
  const Tensor x = convert(a, DType::f32);
  const Tensor y = convert(b, DType::f32);
  // Each vector is divided by its length before the multiplication. If a squared length overflows,
  // the vector becomes zeros, and the result is 0. Multiplying first could give NaN. The slope of
  // rsqrt, a third power, would overflow for lengths below 1.1e-13.
  const auto unit = [&](const Tensor& v) {
    return v / sqrt(clamp(sum(square(v), {from_last}, true), smallest, infinity));
  };
  return convert(sum(unit(x) * unit(y), {from_last}), a.dtype());
}

Tensor cosine_loss(const Tensor& a, const Tensor& b, const Tensor& targets, float margin) {
  TESSERA_CHECK(a.shape() == b.shape() && a.rank() >= 1,
                "cosine_loss: inputs have shapes {} and {}, expected both (..., C)", a.shape(),
                b.shape());
  const Shape rows(std::span(a.shape().begin(), a.shape().end() - 1));
  TESSERA_CHECK(targets.shape() == rows, "cosine_loss: targets have shape {}, expected {}",
                targets.shape(), rows);
  TESSERA_CHECK(b.dtype() == a.dtype() && targets.dtype() == a.dtype(),
                "cosine_loss: the second input and the targets have dtypes {} and {}, expected {}",
                dtype_name(b.dtype()), dtype_name(targets.dtype()), dtype_name(a.dtype()));
  const Tensor x = convert(a, DType::f32);
  const Tensor y = convert(b, DType::f32);
  const Tensor t = convert(targets, DType::f32);
  // As in PyTorch, epsilon is added to both squared lengths. cosine_similarity clamps them instead.
  constexpr float epsilon = 1e-12f;
  const auto reciprocal_length = [](const Tensor& v) {
    return rsqrt(sum(square(v), {-1}) + epsilon);
  };
  const Tensor cosine = sum(x * y, {-1}) * reciprocal_length(x) * reciprocal_length(y);
  const Tensor together = greater(t, -t);  // 1 if the target is 1, 0 if it is -1
  return mean(where(together, 1.0f - cosine, clamp(cosine - margin, 0.0f, infinity)));
}

}  // namespace tessera::ops
