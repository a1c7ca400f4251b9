// The arithmetic of mma (emulated/include/core/cuda/mma.cuh). For speed, builds with sanitizers
// compile this file without sanitizers. The code accesses only the lanes' operands, which are
// arrays of fixed size.
#include "core/cuda/mma.cuh"

#include <cstdint>

#include "core/half.h"

namespace tessera::cuda::detail {

namespace {

template <class T>
float value_of(uint32_t word, int half) {
  T value;
  value.bits = static_cast<uint16_t>(word >> (16 * half));
  return float(value);
}

}  // namespace

template <class T>
void multiply(Product* const* lanes) {
  float a[16][16], b[16][8];
  for (int l = 0; l < 32; ++l) {
    const int g = l / 4;
    for (int half = 0; half < 2; ++half) {
      const int k = l % 4 * 2 + half;
      for (int i = 0; i < 4; ++i) {
        a[g + i % 2 * 8][k + i / 2 * 8] = value_of<T>(lanes[l]->a[i], half);
      }
      for (int i = 0; i < 2; ++i) b[k + i * 8][g] = value_of<T>(lanes[l]->b[i], half);
    }
  }
  for (int row = 0; row < 16; ++row) {
    float sums[8];
    for (int column = 0; column < 8; ++column) {
      sums[column] = lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2];
    }
    for (int k = 0; k < 16; ++k) {
      for (int column = 0; column < 8; ++column) sums[column] += a[row][k] * b[k][column];
    }
    for (int column = 0; column < 8; ++column) {
      lanes[row % 8 * 4 + column / 2]->c[row / 8 * 2 + column % 2] = sums[column];
    }
  }
}

template void multiply<BFloat16>(Product* const*);
template void multiply<Float16>(Product* const*);

}  // namespace tessera::cuda::detail
