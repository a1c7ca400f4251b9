// Helpers for arguments that name dimensions. A non-negative argument counts from the first
// dimension, which is 0. A negative argument counts from the last dimension, which is -1.
#pragma once

#include <algorithm>
#include <vector>

#include "core/shape.h"

namespace tessera {

/// Returns `dim` counted from the first dimension. Throws if the shape has no such dimension; the
/// message begins with `name`, the operation.
inline int dimension(const char* name, const Shape& shape, int dim) {
  const int index = dim < 0 ? dim + shape.rank() : dim;
  TESSERA_CHECK(index >= 0 && index < shape.rank(), "{}: there is no dimension {} in shape {}",
                name, dim, shape);
  return index;
}

/// Returns all of `dims`, counted from the first dimension. Throws if the shape lacks a dimension,
/// or if a dimension is given twice.
inline std::vector<int> dimensions(const char* name, const Shape& shape,
                                   const std::vector<int>& dims) {
  std::vector<int> result;
  for (const int dim : dims) {
    const int index = dimension(name, shape, dim);
    TESSERA_CHECK(std::find(result.begin(), result.end(), index) == result.end(),
                  "{}: dimension {} is given twice", name, dim);
    result.push_back(index);
  }
  return result;
}

/// The two possible shapes of a reduction's result. In `ones`, the reduced dimensions have size 1.
/// In `gone`, the reduced dimensions are left out.
struct ReducedShapes {
  Shape ones;
  Shape gone;
};

inline ReducedShapes reduced_shapes(const char* name, const Shape& shape,
                                    const std::vector<int>& dims) {
  const std::vector<int> reduced = dimensions(name, shape, dims);
  ReducedShapes result;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const bool goes = std::find(reduced.begin(), reduced.end(), dim) != reduced.end();
    result.ones.push_back(goes ? 1 : shape[dim]);
    if (!goes) result.gone.push_back(shape[dim]);
  }
  return result;
}

/// Returns the order of dimensions that undoes the permutation `order`.
inline std::vector<int> inverse_order(const std::vector<int>& order) {
  std::vector<int> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  return back;
}

}  // namespace tessera
