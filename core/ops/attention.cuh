// Shared by the CUDA kernels of causal_attention. Finds a head in packed qkv, assigns tiles to
// thread blocks, and multiplies tiles in shared memory on tensor cores. If the type is f32, or if
// on_tensor_cores() returns false, attention_plain.cuh multiplies the tiles without tensor cores.
//
// A warp owns 16 * M rows of a product (M is 1 or 2), and all columns of these rows. Four lanes
// hold a row together (core/cuda/mma.cuh), so the softmax of a row needs only four lanes. The
// result of one product becomes an operand of the next product without leaving registers.
//
// The kernels use mma.sync and cp.async, which every GPU since compute capability 8.0 supports.
// Hopper's wgmma, with copies by TMA, would be faster: on an H100, FlashAttention-2 with mma.sync
// reaches 35 % of the peak, and FlashAttention-3 with wgmma reaches 75 % (arXiv:2407.08608).
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <limits>

#include "core/cuda/approximate.cuh"
#include "core/cuda/kernel.cuh"
#include "core/cuda/mma.cuh"
#include "core/tensor.h"

namespace tessera::cuda::attention {

inline constexpr float log2_e = 1.44269504f;
inline constexpr float infinity = std::numeric_limits<float>::infinity();

struct Sizes {
  int64_t pairs;                      // B * H, pairs of a sequence and a head
  int tokens, heads, head, channels;  // T, H, D, C
  float scale;                        // 1 / sqrt(D), multiplies the scores

  bool empty() const { return pairs * tokens * head == 0; }
};

inline Sizes sizes_of(const Tensor& qkv, int64_t heads) {
  constexpr int64_t limit = int64_t{1} << 28;  // row numbers and strides must fit in 32 bits
  const int64_t channels = qkv.size(2) / 3;
  const int64_t head = channels / heads;
  TESSERA_CHECK(qkv.size(1) <= limit, "causal_attention: {} tokens, expected at most {} on CUDA",
                qkv.size(1), limit);
  TESSERA_CHECK(head <= 256, "causal_attention: heads of size {}, expected at most 256 on CUDA",
                head);
  TESSERA_CHECK(channels <= limit, "causal_attention: {} channels, expected at most {} on CUDA",
                channels, limit);
  return {.pairs = qkv.size(0) * heads,
          .tokens = static_cast<int>(qkv.size(1)),
          .heads = static_cast<int>(heads),
          .head = static_cast<int>(head),
          .channels = static_cast<int>(channels),
          .scale = 1.0f / std::sqrt(static_cast<float>(head))};
}

inline int tiles_of(const Sizes& s, int rows) { return (s.tokens + rows - 1) / rows; }

/// One head's part of a wider matrix: D columns of the row of each token.
template <class T>
struct Slice {
  T* data;
  int stride;  // elements from one token to the next

  __device__ T* row(int token) const { return data + int64_t{token} * stride; }
};

template <class T>
struct Head {
  Slice<T> q, k, v;
};

/// Returns the offset of a head's first element in a tensor whose tokens are `stride` elements
/// apart.
__device__ inline int64_t head_offset(const Sizes& s, int pair, int stride) {
  return int64_t{pair / s.heads} * s.tokens * stride + pair % s.heads * s.head;
}

/// Returns head `pair` % H of sequence `pair` / H of x (B, T, C).
template <class T>
__device__ Slice<T> slice_of(T* x, const Sizes& s, int pair) {
  return {x + head_offset(s, pair, s.channels), s.channels};
}

/// Returns q, k and v of head `pair` % H of sequence `pair` / H of qkv (B, T, 3C).
template <class T>
__device__ Head<T> head_of(T* qkv, const Sizes& s, int pair) {
  const int stride = 3 * s.channels;
  T* const q = qkv + head_offset(s, pair, stride);
  return {{q, stride}, {q + s.channels, stride}, {q + 2 * s.channels, stride}};
}

/// The work of a thread block: a tile of tokens of one head. If these tokens are queries, the block
/// loops over keys. If they are keys, the block loops over queries. The thread blocks of a head
/// read the same data at about the same time, because their indices are consecutive. So most reads
/// hit the cache.
struct Work {
  int pair;   // index of the pair of a sequence and a head
  int first;  // first token of the tile
};

enum class Order { first_tile_first, last_tile_first };

/// Returns the work of this thread block. Under the causal mask, some tiles take longer than
/// others. `order` must let long tiles start first, so that short tiles fill the gaps at the end.
__device__ inline Work work_of_block(const Sizes& s, int rows, Order order) {
  const int tiles = (s.tokens + rows - 1) / rows;
  const int tile = static_cast<int>(blockIdx.x) % tiles;
  return {static_cast<int>(blockIdx.x) / tiles,
          rows * (order == Order::first_tile_first ? tile : tiles - 1 - tile)};
}

// ---- on tensor cores

inline constexpr int warps = 4;
inline constexpr int threads = warps * warp_size;

__device__ inline int lane() { return static_cast<int>(threadIdx.x) % warp_size; }
__device__ inline int warp() { return static_cast<int>(threadIdx.x) / warp_size; }

/// True if the kernels on tensor cores support these tensors on the context's GPU. Their addresses
/// must be aligned to 16 bytes. D must be 64, or 128 if the GPU has enough shared memory. The
/// caller must make sure that the tensors have a 16-bit type.
inline bool on_tensor_cores(const Context& context, const Sizes& s,
                            std::initializer_list<const Tensor*> tensors) {
  for (const Tensor* tensor : tensors) {
    if (!packable(tensor->raw())) return false;
  }
  if (s.head != 128) return s.head == 64;
  // With D = 128, a thread block needs up to 103 KiB of shared memory. GPUs of compute capability
  // 8.6, 8.9 and 12.0 have only 99 KiB.
  int shared_bytes = 0;
  TESSERA_CUDA(cudaDeviceGetAttribute(&shared_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                      context.device.index));
  return shared_bytes >= 103 * 1024;
}

/// Bytes from one row of a tile to the next in shared memory. A row has D 16-bit elements and 16
/// bytes of padding. The padding shifts each row by four banks, so the eight rows that ldmatrix
/// reads at one column are in different banks. With padding, a lane needs one address, because all
/// columns are at constant distances from this address. With swizzling instead of padding, a lane
/// would need an address in a register for each column. Registers are scarcer than shared memory in
/// these kernels.
template <int D>
inline constexpr uint32_t pitch = D * 2 + 16;

/// Returns the offset in bytes of a chunk of 16 bytes in a tile.
template <int D>
__device__ constexpr uint32_t chunk_offset(int row, int chunk) {
  return static_cast<uint32_t>(row) * pitch<D> + static_cast<uint32_t>(chunk) * 16;
}

/// Starts copying `rows` tokens, from token `first` on, into a tile. Rows past the last token
/// become zero.
template <int rows, int D, class T>
__device__ void load_tile(SharedAddress tile, Slice<const T> from, int first, int tokens) {
  constexpr int chunks = D / 8;
  constexpr int step = threads / chunks;
  static_assert(rows % step == 0);
  const int row = static_cast<int>(threadIdx.x / chunks);
  const int chunk = static_cast<int>(threadIdx.x % chunks);
  const SharedAddress to = tile + chunk_offset<D>(row, chunk);
  const T* data = from.row(first + row) + 8 * chunk;
  TESSERA_UNROLL
  for (int i = 0; i < rows; i += step) {
    copy_async_16(to + chunk_offset<D>(i, 0), data, first + row + i < tokens);
    data += int64_t{step} * from.stride;
  }
}

/// Blocks of keys in shared memory. Each has `keys` keys, followed by the values of these keys. The
/// blocks are double-buffered: while warps work on one block, the next block is copied.
template <class T, int D, int keys>
struct KeyBlocks {
  static constexpr uint32_t half = keys * pitch<D>;
  static constexpr uint32_t bytes = 4 * half;

  SharedAddress room;
  Head<const T> head;
  int tokens;

  __device__ SharedAddress keys_of(int block) const {
    return room + static_cast<uint32_t>(block % 2) * 2 * half;
  }
  __device__ SharedAddress values_of(int block) const { return keys_of(block) + half; }
  __device__ void load(int block) const {
    load_tile<keys, D>(keys_of(block), head.k, block * keys, tokens);
    load_tile<keys, D>(values_of(block), head.v, block * keys, tokens);
    commit_copies();
  }
};

/// Returns the offset of the address that this lane passes to ldmatrix for rows 0 to 15 and chunks
/// 0 and 1 of a tile. All operands are read in this pattern.
template <int D>
__device__ uint32_t lane_offset() {
  return chunk_offset<D>(lane() % 16, lane() / 16);
}

/// c (16 M, 8 N) += a b^T, where a (16 M, D) and b (8 N, D) are rows of two tiles.
template <class T, int D, int M, int N>
__device__ void multiply_rows(float (&c)[M][N][4], SharedAddress a, SharedAddress b) {
  TESSERA_UNROLL
  for (int k = 0; k < D / 16; ++k) {
    uint32_t left[M][4];
    TESSERA_UNROLL
    for (int m = 0; m < M; ++m) {
      load_matrices(left[m], a + lane_offset<D>() + chunk_offset<D>(16 * m, 2 * k));
    }
    TESSERA_UNROLL
    for (int n = 0; n < N; n += 2) {
      uint32_t right[4];
      load_matrices(right, b + lane_offset<D>() + chunk_offset<D>(8 * n, 2 * k));
      TESSERA_UNROLL
      for (int m = 0; m < M; ++m) {
        mma<T>(c[m][n], left[m], right[0], right[2]);
        mma<T>(c[m][n + 1], left[m], right[1], right[3]);
      }
    }
  }
}

/// A matrix (16 M, 16 K) in registers, in the layout of the left operand of mma.
template <int M, int K>
struct Weights {
  uint32_t value[M][K][4];
};

/// Rounds a product's result (16 M, 8 N) to T, in the layout of the next product's left operand.
template <class T, int M, int N>
__device__ Weights<M, N / 2> rounded_weights(const float (&c)[M][N][4]) {
  Weights<M, N / 2> result;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int k = 0; k < N / 2; ++k) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* const two = c[m][2 * k + i / 2] + i % 2 * 2;
        result.value[m][k][i] = pack<T>(two[0], two[1]);
      }
    }
  }
  return result;
}

/// c (16 M, D) += weights (16 M, 16 K) b, where b (16 K, D) are rows of a tile.
template <class T, int D, int M, int K>
__device__ void add_weighted_rows(float (&c)[M][D / 8][4], const Weights<M, K>& weights,
                                  SharedAddress b) {
  TESSERA_UNROLL
  for (int k = 0; k < K; ++k) {
    TESSERA_UNROLL
    for (int n = 0; n < D / 8; n += 2) {
      uint32_t right[4];
      load_matrices_transposed(right, b + lane_offset<D>() + chunk_offset<D>(16 * k, n));
      TESSERA_UNROLL
      for (int m = 0; m < M; ++m) {
        mma<T>(c[m][n], weights.value[m][k], right[0], right[1]);
        mma<T>(c[m][n + 1], weights.value[m][k], right[2], right[3]);
      }
    }
  }
}

/// Calls body(value, row, column) for each element of c (16 M, 8 N) that this lane holds.
template <int M, int N, class Body>
__device__ void for_each_element(float (&c)[M][N][4], const Body& body) {
  const int g = lane() / 4;
  const int q = lane() % 4;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int n = 0; n < N; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        body(c[m][n][i], 16 * m + 8 * (i / 2) + g, 8 * n + 2 * q + i % 2);
      }
    }
  }
}

/// Applies the causal mask: sets scores to -infinity where the key is later than the query. Rows
/// are queries from token `row` on, and columns are keys from token `column` on.
template <int M, int N>
__device__ void hide_later_keys(float (&scores)[M][N][4], int row, int column) {
  if (column + 8 * N - 1 <= row) return;
  for_each_element(scores, [=](float& score, int r, int c) {
    if (column + c > row + r) score = -infinity;
  });
}

/// Applies the causal mask: sets scores to -infinity where the key is later than the query. Rows
/// are keys from token `row` on, and columns are queries from token `column` on.
template <int M, int N>
__device__ void hide_earlier_queries(float (&scores)[M][N][4], int row, int column) {
  if (row + 16 * M - 1 <= column) return;
  for_each_element(scores, [=](float& score, int r, int c) {
    if (row + r > column + c) score = -infinity;
  });
}

/// Multiplies each row of a warp's result (16 M, D) by a factor, and writes the rows to the tokens
/// from `first` on. The factor of row 16 m + 8 half + lane / 4 is factor(m, half). A lane holds its
/// part of a row in pieces of 4 adjacent bytes, but one store can write 16. So the warp first
/// copies the result to shared memory, into the rows of `tile` from `row` on, and then stores 16
/// bytes at a time. No other warp may use these rows of `tile`.
template <int D, class T, int M, class Factor>
__device__ void store_rows(Slice<T> to, int first, int tokens, const float (&c)[M][D / 8][4],
                           const Factor& factor, T* tile, int row) {
  char* const shared = reinterpret_cast<char*>(tile);
  __syncwarp();  // all lanes have read the old contents of these rows
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = row + 16 * m + 8 * half + lane() / 4;
      TESSERA_UNROLL
      for (int n = 0; n < D / 8; ++n) {
        const float* const two = c[m][n] + 2 * half;
        *reinterpret_cast<uint32_t*>(shared + chunk_offset<D>(r, n) + lane() % 4 * 4) =
            pack<T>(two[0] * factor(m, half), two[1] * factor(m, half));
      }
    }
  }
  __syncwarp();
  constexpr int chunks = D / 8;
  TESSERA_UNROLL
  for (int i = 0; i < 16 * M * chunks / warp_size; ++i) {
    const int index = i * warp_size + lane();
    const int r = index / chunks;
    const int chunk = index % chunks;
    if (first + r >= tokens) continue;
    *reinterpret_cast<Pack<T>*>(to.row(first + r) + 8 * chunk) =
        *reinterpret_cast<const Pack<T>*>(shared + chunk_offset<D>(row + r, chunk));
  }
}

}  // namespace tessera::cuda::attention
