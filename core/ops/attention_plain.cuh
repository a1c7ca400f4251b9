// Multiplies tiles without tensor cores, for the CUDA kernels of causal_attention. Computes in f32
// on elements of any type at any address, for heads of a size D up to 256. Threads form a square of
// 16 x 16. Thread (across, down) owns rows down + 16 i and columns across + 16 j of a tile's
// products.
#pragma once

#include <algorithm>

#include "core/ops/attention.cuh"

namespace tessera::cuda::attention {

inline constexpr int side = 16;
inline constexpr int plain_threads = side * side;

__device__ inline int across() { return static_cast<int>(threadIdx.x) % side; }
__device__ inline int down() { return static_cast<int>(threadIdx.x) / side; }

/// Calls body.template operator()<R, J>() with the R and J for heads of size D. A tile has 16 R
/// tokens. A thread computes J of the D columns of a result; these columns are 16 apart. The shared
/// memory of a block stays below the 99 KiB that every GPU since compute capability 8.0 has.
template <class Body>
void visit_plain_tile(int head, const Body& body) {
  if (head <= 64) return body.template operator()<4, 4>();
  if (head <= 128) return body.template operator()<2, 8>();
  return body.template operator()<1, 16>();
}

/// Floats from one row of a tile of D columns to the next. The number is odd, so that the elements
/// of a column are in different banks.
__host__ __device__ inline int plain_pitch(int head) { return head | 1; }

/// Returns the bytes of shared memory of a block with `tiles` tiles of `rows` tokens and with
/// `squares` matrices (rows, rows) of weights.
inline size_t plain_shared_bytes(int rows, int head, int tiles, int squares) {
  return sizeof(float) *
         static_cast<size_t>(rows * (tiles * plain_pitch(head) + squares * (rows + 1)));
}

/// Copies `rows` tokens, from token `first` on, into a tile, as f32. Rows past the last token
/// become zero.
template <class T>
__device__ void load_plain(float* tile, int rows, Slice<const T> from, int first, const Sizes& s) {
  for (int r = down(); r < rows; r += side) {
    for (int d = across(); d < s.head; d += side) {
      tile[r * plain_pitch(s.head) + d] =
          first + r < s.tokens ? float(from.row(first + r)[d]) : 0.0f;
    }
  }
}

/// c += a b^T, where a and b are the rows of two tiles.
template <int R>
__device__ void multiply_plain(float (&c)[R][R], const float* a, const float* b, int head) {
  const int pitch = plain_pitch(head);
  for (int d = 0; d < head; ++d) {
    float right[R];
    TESSERA_UNROLL
    for (int j = 0; j < R; ++j) right[j] = b[(across() + side * j) * pitch + d];
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const float left = a[(down() + side * i) * pitch + d];
      TESSERA_UNROLL
      for (int j = 0; j < R; ++j) c[i][j] += left * right[j];
    }
  }
}

/// Writes a square of weights to shared memory, for all threads of the block.
template <int R>
__device__ void share_plain(float* square, const float (&c)[R][R]) {
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    TESSERA_UNROLL
    for (int j = 0; j < R; ++j) {
      square[(down() + side * i) * (side * R + 1) + across() + side * j] = c[i][j];
    }
  }
}

/// c (16 R, D) += weights b, where share_plain wrote `weights` (16 R, 16 R), and b is a tile. Only
/// the first `tokens` rows of b are read, because all rows after them are zero.
template <int R, int J>
__device__ void add_plain(float (&c)[R][J], const float* weights, const float* b, int tokens,
                          int head) {
  int column[J];  // columns past D repeat the last column, and are not stored
  TESSERA_UNROLL
  for (int j = 0; j < J; ++j) column[j] = std::min(across() + side * j, head - 1);
  for (int k = 0; k < std::min(side * R, tokens); ++k) {
    float right[J];
    TESSERA_UNROLL
    for (int j = 0; j < J; ++j) right[j] = b[k * plain_pitch(head) + column[j]];
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const float left = weights[(down() + side * i) * (side * R + 1) + k];
      TESSERA_UNROLL
      for (int j = 0; j < J; ++j) c[i][j] += left * right[j];
    }
  }
}

/// Writes a result (16 R, D) to the tokens from `first` on, with row i of each thread multiplied by
/// factor(i).
template <int R, int J, class T, class Factor>
__device__ void store_plain(Slice<T> to, int first, const float (&c)[R][J], const Factor& factor,
                            const Sizes& s) {
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    const int token = first + down() + side * i;
    TESSERA_UNROLL
    for (int j = 0; j < J; ++j) {
      const int d = across() + side * j;
      if (token < s.tokens && d < s.head) to.row(token)[d] = rounded<T>(c[i][j] * factor(i));
    }
  }
}

}  // namespace tessera::cuda::attention
