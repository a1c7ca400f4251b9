// Shapes and dimensions for tests of operations over dimensions, such as sum and softmax. A run is
// the set of elements that such an operation combines.
#pragma once

#include <algorithm>
#include <vector>

#include "core/shape.h"

namespace tessera::test {

struct RunCase {
  Shape shape;
  std::vector<int> dims;
};

/// Returns cases of three kinds: contiguous runs, strided runs, and runs over dimensions that are
/// not adjacent. Some runs are shorter, and some longer, than each of two limits:
///  - 64 elements: the longest strip that the CPU reads (core/ops/run_strips.h);
///  - 1024 elements: the longest contiguous run that a warp handles on CUDA. A block handles longer
///    runs (core/ops/run_threads.cuh).
inline std::vector<RunCase> run_cases() {
  return {{{7}, {0}},
          {{3, 65}, {1}},
          {{3, 65}, {0}},
          {{2, 5, 130}, {1}},
          {{2, 3, 4, 5}, {1, 2}},
          {{2, 3, 4, 5}, {-1, 0}},
          {{4, 1, 5}, {0, 2}},
          {{3, 1}, {1}},
          {{2, 1100}, {-1}},
          {{1100, 2}, {0}},
          {{3, 4}, {0, 1}},
          {{3, 4}, {}},
          {{}, {}},
          {{0, 3}, {1}},
          {{2, 3, 2, 3}, {3, 1}}};
}

/// Maps elements to runs: element i is in run number `of[i]`. Run r gives element r of the result.
struct RunsReference {
  Shape ones;  // the result's shape if reduced dimensions are kept as 1
  Shape gone;  // the result's shape without the reduced dimensions
  std::vector<size_t> of;
  size_t count = 1;

  explicit RunsReference(const RunCase& c) {
    const int rank = c.shape.rank();
    std::vector<bool> reduced(static_cast<size_t>(rank), false);
    for (const int dim : c.dims) reduced[static_cast<size_t>(dim < 0 ? dim + rank : dim)] = true;
    for (int dim = 0; dim < rank; ++dim) {
      const bool goes = reduced[static_cast<size_t>(dim)];
      ones.push_back(goes ? 1 : c.shape[dim]);
      if (!goes) gone.push_back(c.shape[dim]);
    }
    count = static_cast<size_t>(gone.elements());
    of.resize(static_cast<size_t>(c.shape.elements()));
    for (size_t element = 0; element < of.size(); ++element) {
      size_t rest = element, run = 0, step = 1;
      for (int dim = rank; dim-- > 0;) {
        const auto size = static_cast<size_t>(c.shape[dim]);
        if (!reduced[static_cast<size_t>(dim)]) {
          run += rest % size * step;
          step *= size;
        }
        rest /= size;
      }
      of[element] = run;
    }
  }
};

}  // namespace tessera::test
