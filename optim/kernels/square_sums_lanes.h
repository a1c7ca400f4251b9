// The order in which the squares of a block of 256 elements are added: element i of the block goes
// to lane i mod 16, and the lanes are added pairwise. The loops below fix this order, because a
// block's sum must have the same bits on every rank.
#pragma once

#include <cstdint>

namespace tessera::cpu {

inline constexpr int64_t square_sum_lanes = 16;
inline constexpr int64_t square_sum_block = 256;

/// Adds the squares of x[0], ..., x[count - 1] to their lanes. x[0] is element `first` of the
/// block. Each product is exact in fp64, because its factors have at most 24 significant bits.
template <class T>
void add_squares(double* lanes, const T* x, int64_t first, int64_t count) {
  constexpr int64_t n = square_sum_lanes;
  int64_t i = 0;
  for (; i < count && (first + i) % n != 0; ++i) {
    lanes[(first + i) % n] += double(float(x[i])) * double(float(x[i]));
  }
  for (; i + n <= count; i += n) {
#pragma omp simd
    for (int64_t lane = 0; lane < n; ++lane) {
      const double value = float(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (; i < count; ++i) lanes[(first + i) % n] += double(float(x[i])) * double(float(x[i]));
}

/// Returns the sum of all lanes. Overwrites the lanes.
inline double add_lanes(double* lanes) {
  for (int64_t width = square_sum_lanes / 2; width > 0; width /= 2) {
    for (int64_t lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

}  // namespace tessera::cpu
