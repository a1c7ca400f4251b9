// Broadcasting, which pairs the elements of tensors of different shapes. As in NumPy, shapes are
// aligned at their last dimensions, and a dimension that is 1 or missing is repeated.
#pragma once

#include <array>
#include <cstdint>

#include "core/dispatch.h"
#include "core/shape.h"

namespace tessera {

/// Returns the shape that a and b are broadcast to. Throws if the shapes do not fit; the message
/// begins with `name`, the operation.
Shape broadcast_shape(const char* name, const Shape& a, const Shape& b);

/// A walk over all elements of a shape, in row-major order, with the strides of two tensors a and b
/// that are broadcast to the shape. Neighbouring dimensions are merged if the strides of both
/// tensors allow this.
///
/// The walks that permute.cpp makes for copy_walk are different: they go over the shape of the
/// permuted copy, and dimensions are not merged. Tensor a is the one that is copied. There is no b,
/// so b_strides have no meaning.
struct BroadcastWalk {
  int rank = 0;  // at least 1 in every result of broadcast_walk
  std::array<int64_t, Shape::max_rank> sizes{};
  std::array<int64_t, Shape::max_rank> a_strides{};  // elements; 0 where a is repeated
  std::array<int64_t, Shape::max_rank> b_strides{};

  int64_t elements() const;
  /// True if element i of the walk is element i of both tensors, without broadcasting.
  bool flat() const { return rank == 1 && a_strides[0] == 1 && b_strides[0] == 1; }
};
/// Returns the walk over shape y, which a and b are broadcast to.
BroadcastWalk broadcast_walk(const Shape& y, const Shape& a, const Shape& b);

/// y = factor * sum of x over the dimensions that are 1 or missing in y. Each element of y is
/// summed in f64, in an order that depends on the shapes alone. y has the dtype of x.
TESSERA_KERNEL(sum_to, const Tensor& y, const Tensor& x, float factor)
/// y = factor * x. The walk goes over y, and tensor `a` of the walk is x.
TESSERA_KERNEL(copy_walk, const Tensor& y, const Tensor& x, const BroadcastWalk& walk, float factor)

}  // namespace tessera
