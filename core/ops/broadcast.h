// How elements of tensors of different shapes are put against each other. As in NumPy: shapes are
// aligned at their last dimensions, and a dimension of 1, or one that is missing, is repeated.
#pragma once

#include <array>
#include <cstdint>

#include "core/dispatch.h"
#include "core/shape.h"

namespace tessera {

/// The shape of the result. Throws, with the operation's name, where shapes do not fit.
Shape broadcast_shape(const char* name, const Shape& a, const Shape& b);

/// A walk over all elements of a shape, in order, and the elements of two tensors that belong to
/// them. Neighbouring dimensions that both tensors walk through alike are one.
struct BroadcastWalk {
  int rank = 0;  // at least 1
  std::array<int64_t, Shape::max_rank> sizes{};
  std::array<int64_t, Shape::max_rank> a_strides{};  // elements; 0 where it is repeated
  std::array<int64_t, Shape::max_rank> b_strides{};

  int64_t elements() const;
  /// Whether neither tensor is repeated.
  bool flat() const { return rank == 1 && a_strides[0] == 1 && b_strides[0] == 1; }
};
BroadcastWalk broadcast_walk(const Shape& y, const Shape& a, const Shape& b);

/// y = the sum of x over dimensions that y has as 1 or lacks, times `factor`. Each element of y is
/// summed in f64 and in ascending order of the elements of x; y has the dtype of x.
TESSERA_KERNEL(sum_to, const Tensor& y, const Tensor& x, float factor)
/// y = the elements of x at the places that the walk over y gives as `a`, times `factor`.
TESSERA_KERNEL(copy_walk, const Tensor& y, const Tensor& x, const BroadcastWalk& walk, float factor)

}  // namespace tessera
