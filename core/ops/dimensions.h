// Dimensions as operations take them: counted from the first one, or, if negative, from the last.
#pragma once

#include <algorithm>
#include <vector>

#include "core/shape.h"

namespace tessera {

/// `dim` counted from the first dimension. Throws, with the operation's name, if the shape has no
/// such dimension.
inline int dimension(const char* name, const Shape& shape, int dim) {
  const int index = dim < 0 ? dim + shape.rank() : dim;
  TESSERA_CHECK(index >= 0 && index < shape.rank(), "{}: there is no dimension {} in shape {}",
                name, dim, shape);
  return index;
}

/// All of `dims`, counted from the first dimension; none may be given twice.
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

/// The shapes that a reduction over some dimensions leaves: `ones` has these dimensions as 1,
/// `gone` is without them.
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

/// The order that undoes a permutation.
inline std::vector<int> inverse_order(const std::vector<int>& order) {
  std::vector<int> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    back[static_cast<size_t>(order[i])] = static_cast<int>(i);
  }
  return back;
}

}  // namespace tessera
