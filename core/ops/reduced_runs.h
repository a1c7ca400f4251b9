// A reduction treats a tensor as (outer, reduced, inner), with the dimensions to reduce in the
// middle. If these dimensions are not adjacent, the tensor is permuted first. A run is the
// elements that are reduced to one result.
//
//   (2, 3, 4, 5) over {1, 2}: outer 2, reduced 12, inner 5. The elements of a run are 5 apart.
//   (2, 3, 4, 5) over {1, 3}: permuted to (2, 4, 3, 5), then outer 8, reduced 15, inner 1
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/ops/dimensions.h"

namespace tessera {

/// Run (o, i) is the elements (o, 0, i), (o, 1, i), ...; its index is o * inner + i.
struct ReducedRuns {
  int64_t outer = 1;
  int64_t reduced = 1;
  int64_t inner = 1;

  int64_t count() const { return outer * inner; }
};

struct ReducedDims {
  ReducedShapes shapes;
  ReducedRuns runs;
  std::vector<int> order;  // the permutation to apply first; empty if none is needed
};

/// Returns the runs over the given dimensions of a shape. Throws if the shape lacks a given
/// dimension, or if a dimension is given twice. The message begins with `name`, the operation.
inline ReducedDims reduced_dims(const char* name, const Shape& shape,
                                const std::vector<int>& dims) {
  const std::vector<int> reduced = dimensions(name, shape, dims);
  ReducedDims result{.shapes = reduced_shapes(name, shape, dims), .runs = {}, .order = {}};
  ReducedRuns& runs = result.runs;
  std::vector<int> kept_order, reduced_order;
  // False if a kept dimension is between reduced dimensions. Dimensions of size 1 do not count.
  bool neighbours = true;
  for (int dim = 0; dim < shape.rank(); ++dim) {
    const int64_t size = shape[dim];
    const bool goes = std::find(reduced.begin(), reduced.end(), dim) != reduced.end();
    (goes ? reduced_order : kept_order).push_back(dim);
    if (size == 1) continue;
    if (goes) {
      neighbours = neighbours && runs.inner == 1;
      runs.reduced *= size;
    } else {
      (runs.reduced == 1 ? runs.outer : runs.inner) *= size;
    }
  }
  if (neighbours) return result;
  runs = {.outer = result.shapes.gone.elements(), .reduced = runs.reduced, .inner = 1};
  result.order = kept_order;
  result.order.insert(result.order.end(), reduced_order.begin(), reduced_order.end());
  return result;
}

}  // namespace tessera
