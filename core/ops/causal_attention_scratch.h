// What one thread of causal_attention works in, and the matrices and products of one head.
//
//   const attention::Sizes s(qkv, heads);
//   const int64_t floats = attention::Scratch<T>::floats(s, backward);  // for each thread
//   const attention::Scratch<T> scratch(memory, s, backward);
//
// The scratch holds the workspace of products too, so that a thread allocates nothing: what a team
// holds does not depend on which of its threads multiply at the same time.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "core/cpu/gemm.h"
#include "core/ops/causal_attention.h"
#include "core/tensor.h"

namespace tessera::cpu::attention {

inline constexpr int64_t tile_rows = attention_tile_rows;
inline constexpr int64_t block_keys = attention_block_keys;

struct Sizes {
  int64_t batch, tokens, heads, channels;
  int64_t head = 0;   // D
  float scale = 0;    // of the scores
  int64_t tiles = 0;  // of a head's query rows
  int64_t keys = 0;   // in the longest block

  Sizes(const Tensor& qkv, int64_t head_count)
      : batch(qkv.size(0)),
        tokens(qkv.size(1)),
        heads(head_count),
        channels(qkv.size(2) / 3),
        head(channels / heads),
        scale(1.0f / std::sqrt(static_cast<float>(head))),
        tiles((tokens + tile_rows - 1) / tile_rows),
        keys(std::min(tokens, block_keys)) {}

  int64_t packed() const { return 3 * channels; }  // between tokens of qkv
  bool empty() const { return batch * tokens * channels == 0; }
};

/// One head's part (T, D) of a wider matrix.
template <class T>
struct Slice {
  T* data;
  int64_t stride;  // between tokens

  Slice rows(int64_t first) const { return {data + first * stride, stride}; }
};

/// The part of one sequence's head `h` of x (B, T, C).
template <class T>
Slice<T> slice_of(T* x, const Sizes& s, int64_t sequence, int64_t h) {
  return {x + sequence * s.tokens * s.channels + h * s.head, s.channels};
}

template <class T>
struct Head {
  Slice<T> q, k, v;
};

/// The same of qkv (B, T, 3C).
template <class T>
Head<T> head_of(T* qkv, const Sizes& s, int64_t sequence, int64_t h) {
  T* q = qkv + sequence * s.tokens * s.packed() + h * s.head;
  return {{q, s.packed()}, {q + s.channels, s.packed()}, {q + 2 * s.channels, s.packed()}};
}

/// Where query rows [row, row + rows) meet keys [key, key + keys).
struct Block {
  int64_t row, rows;
  int64_t key, keys;
};

/// Rows of the tile that starts at `row`.
inline int64_t rows_of_tile(const Sizes& s, int64_t row) {
  return std::min(tile_rows, s.tokens - row);
}

/// Calls body(block) for the blocks of keys that the tile from `row` on sees, in order.
template <class Body>
void for_each_block(const Sizes& s, int64_t row, const Body& body) {
  const int64_t rows = rows_of_tile(s, row);
  const int64_t end = row + rows;  // of what the last row sees
  for (int64_t key = 0; key < end; key += block_keys) {
    body(Block{row, rows, key, std::min(block_keys, end - key)});
  }
}

// The products of a block, of matrices of T into one of f32, on the calling thread. Their workspace
// can be asked for without addresses.

/// to (rows, keys) = a (rows, D) b (keys, D)^T
template <class T>
ProductArgs scores_product(const Sizes& s, const Block& x, Slice<const T> a, Slice<const T> b,
                           float* to) {
  return {.m = x.rows,
          .n = x.keys,
          .k = s.head,
          .a = {a.data, a.stride},
          .b = {b.data, 1, b.stride},
          .c = {to, x.keys},
          .dtype = dtype_of<T>};
}

/// to (rows, D) = weights (rows, keys) b (keys, D), summed over the blocks of a tile.
template <class T>
ProductArgs rows_product(const Sizes& s, const Block& x, const T* weights, Slice<const T> b,
                         float* to) {
  return {.m = x.rows,
          .n = s.head,
          .k = x.keys,
          .a = {weights, x.keys},
          .b = {b.data, b.stride},
          .c = {to, s.head},
          .accumulate = x.key > 0,
          .dtype = dtype_of<T>};
}

/// to (keys, D) = weights (rows, keys)^T b (rows, D), summed over the tiles of a head: the last one
/// comes first and overwrites.
template <class T>
ProductArgs keys_product(const Sizes& s, const Block& x, const T* weights, Slice<const T> b,
                         float* to) {
  return {.m = x.keys,
          .n = s.head,
          .k = x.rows,
          .a = {weights, 1, x.keys},
          .b = {b.data, b.stride},
          .c = {to, s.head},
          .accumulate = x.row + x.rows < s.tokens,
          .dtype = dtype_of<T>};
}

/// The workspace of the largest product of a pass, in whole cache lines.
template <class T>
int64_t product_floats(const Sizes& s, bool backward) {
  const Slice<const T> packed{nullptr, s.packed()};
  const Slice<const T> unpacked{nullptr, s.channels};
  int64_t bytes = 0;
  const auto count = [&](const ProductArgs& args) {
    bytes = std::max(bytes, gemm_workspace_bytes(args, {.threads = 1}));
  };
  for (int64_t tile = 0; tile < s.tiles; ++tile) {
    // Those in between have no product that the tiles of the first two blocks do not have.
    if (tile >= 2 * block_keys / tile_rows && tile < s.tiles - 1) continue;
    for_each_block(s, tile * tile_rows, [&](const Block& x) {
      count(scores_product<T>(s, x, packed, packed, nullptr));
      count(rows_product<T>(s, x, nullptr, packed, nullptr));
      if (!backward) return;
      count(scores_product<T>(s, x, unpacked, packed, nullptr));
      count(keys_product<T>(s, x, nullptr, unpacked, nullptr));
      count(keys_product<T>(s, x, nullptr, packed, nullptr));
    });
  }
  return (bytes + 63) / 64 * 64 / dtype_size(DType::f32);
}

/// What one thread works in. Scores, the softmax and all sums are f32; a product takes its operands
/// in T. `probabilities` shares the memory of `scores` where T is f32: each value is read before it
/// is overwritten.
template <class T>
struct Scratch {
  float* scores;     // (tile_rows, keys)
  T* probabilities;  // (tile_rows, keys)
  float* gradient;   // (tile_rows, keys), backward only
  T* dscores;        // (tile_rows, keys), backward only
  float* out;        // (tile_rows, D)
  float* maximum;    // (tile_rows)
  float* sum;        // (tile_rows)
  float* dk;         // (T, D), backward only
  float* dv;         // (T, D), backward only
  void* workspace;   // of a product

  static constexpr bool shared = std::is_same_v<T, float>;

  /// Of a tile of scores, of one of T, and of dk. Like all that lies here whole cache lines.
  static int64_t score_floats(const Sizes& s) { return tile_rows * s.keys; }
  static int64_t rounded_floats(const Sizes& s) {
    return shared ? 0 : score_floats(s) * dtype_size(dtype_of<T>) / dtype_size(DType::f32);
  }
  static int64_t sum_floats(const Sizes& s) { return s.tiles * tile_rows * s.head; }

  static int64_t floats(const Sizes& s, bool backward) {
    const int64_t pair = score_floats(s) + rounded_floats(s);
    const int64_t tiles = (backward ? 2 : 1) * pair + tile_rows * (s.head + 2);
    return tiles + (backward ? 2 * sum_floats(s) : 0) + product_floats<T>(s, backward);
  }

  Scratch(float* memory, const Sizes& s, bool backward) {
    const auto take = [&](int64_t count) {
      float* taken = memory;
      memory += count;
      return taken;
    };
    out = take(tile_rows * s.head);
    maximum = take(tile_rows);
    sum = take(tile_rows);
    scores = take(score_floats(s));
    probabilities = reinterpret_cast<T*>(shared ? scores : take(rounded_floats(s)));
    gradient = backward ? take(score_floats(s)) : nullptr;
    dscores = reinterpret_cast<T*>(shared || !backward ? gradient : take(rounded_floats(s)));
    dk = backward ? take(sum_floats(s)) : nullptr;
    dv = backward ? take(sum_floats(s)) : nullptr;
    workspace = memory;
  }

  void multiply(const ProductArgs& args) const {
    gemm(args, {.threads = 1, .workspace = workspace});
  }
};

}  // namespace tessera::cpu::attention
