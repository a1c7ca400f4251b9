// How operations take dimensions: counted from the first one, or, negative, from the last.
#pragma once

#include <algorithm>
#include <vector>

#include "core/shape.h"

namespace tessera {

/// `dim` counted from the first dimension. Throws, with the operation's name, where there is none.
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

}  // namespace tessera
