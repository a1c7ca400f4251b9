// Shapes and options for the tests of pooling, and a loop over all windows for the reference
// implementations in these tests.
#pragma once

#include <ostream>
#include <vector>

#include "core/image_ops.h"

namespace tessera::test {

struct PoolCase {
  Shape x;  // (N, H, W, C)
  PoolOptions options;

  Shape y() const {
    const auto windows = [](int64_t pixels, int64_t kernel, int64_t stride, int64_t padding) {
      int64_t count = 0;
      while (count * stride + kernel <= pixels + 2 * padding) ++count;
      return count;
    };
    const auto& [kernel, stride, padding] = options;
    return {x[0], windows(x[1], kernel.height, stride.height, padding.height),
            windows(x[2], kernel.width, stride.width, padding.width), x[3]};
  }

  /// Calls body(i, j) for each element i of y and each element j of x in the window of i. The flat
  /// indices i and j belong to elements of the same channel. Padding is skipped. Windows, and the
  /// pixels of each window, are visited row by row.
  template <class Body>
  void each(Body&& body) const {
    const auto& [kernel, stride, padding] = options;
    const Shape to = y();
    for (int64_t i = 0; i < to.elements(); ++i) {
      const int64_t c = i % to[3], column = i / to[3] % to[2];
      const int64_t row = i / to[3] / to[2] % to[1], image = i / to[3] / to[2] / to[1];
      for (int64_t j = 0; j < kernel.height * kernel.width; ++j) {
        const int64_t h = row * stride.height - padding.height + j / kernel.width;
        const int64_t w = column * stride.width - padding.width + j % kernel.width;
        if (h < 0 || h >= x[1] || w < 0 || w >= x[2]) continue;
        const int64_t pixel = (image * x[1] + h) * x[2] + w;
        body(static_cast<size_t>(i), static_cast<size_t>(pixel * x[3] + c));
      }
    }
  }
};

inline std::ostream& operator<<(std::ostream& out, const PoolCase& pool) {
  const auto& [kernel, stride, padding] = pool.options;
  for (const int64_t extent : pool.x) out << extent << ' ';
  return out << "kernel " << kernel.height << ' ' << kernel.width << " stride " << stride.height
             << ' ' << stride.width << " padding " << padding.height << ' ' << padding.width;
}

inline std::vector<PoolCase> pool_cases() {
  return {{{1, 1, 1, 1}, {}},
          {{2, 7, 5, 3}, {.kernel = 3, .stride = 2, .padding = 1}},
          {{1, 9, 11, 16}, {.kernel = 2, .stride = 2}},
          {{2, 5, 7, 17}, {.kernel = 3, .stride = 1, .padding = 1}},
          {{1, 8, 7, 64}, {.kernel = {3, 2}, .stride = {3, 1}, .padding = {1, 0}}},
          {{1, 6, 5, 8}, {.kernel = {4, 3}, .stride = {1, 3}, .padding = {2, 1}}},
          {{1, 3, 4, 600}, {.kernel = 2, .stride = 3, .padding = 1}},
          {{3, 15, 17, 1}, {.kernel = {15, 17}}},
          {{0, 4, 4, 2}, {.kernel = 2, .stride = 2}}};
}

}  // namespace tessera::test
