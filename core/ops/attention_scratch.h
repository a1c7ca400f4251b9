// For attention and causal_attention on the CPU: the workspace of one thread, and the matrices and
// products of one head.
//
//   const attention::Sizes s = ...;
//   const int64_t floats = attention::Scratch<T>::floats(s, backward);  // for each thread
//   const attention::Scratch<T> scratch(memory, s, backward);
//
// The scratch includes the workspace of the thread's products, so products allocate nothing. If
// products allocated their workspace, the peak memory would depend on how many threads multiply at
// the same time.
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

/// The layout of one sequence in memory: a row for each token, which holds all heads of the token.
struct Layout {
  int64_t tokens = 0;
  int64_t stride = 0;  // elements from one token to the next
};

struct Sizes {
  int64_t batch = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // heads of k and v, each for heads / kv_heads neighbouring heads of q
  int64_t head = 0;      // size of a head, D
  float scale = 0;       // multiplies the scores
  bool causal = false;
  Layout q, kv, y;  // also the layouts of their gradients

  int64_t group() const { return heads / kv_heads; }
  bool empty() const { return batch * q.tokens * heads * head == 0; }
  /// Number of tiles that the queries of a head are divided into.
  int64_t tiles() const { return (q.tokens + tile_rows - 1) / tile_rows; }
  int64_t longest_block() const { return std::min(kv.tokens, block_keys); }
  /// Number of keys that query t sees, at least one. These are the first keys of the sequence.
  int64_t visible(int64_t t) const { return causal ? t + 1 + kv.tokens - q.tokens : kv.tokens; }
};

/// One head's part of a wider matrix: D columns of the row of each token.
template <class T>
struct Slice {
  T* data;
  int64_t stride;  // elements from one token to the next

  Slice rows(int64_t first) const { return {data + first * stride, stride}; }
};

/// Returns head `h` of one sequence in x, where x has the given layout.
template <class T>
Slice<T> slice_of(T* x, const Layout& layout, const Sizes& s, int64_t sequence, int64_t h) {
  return {x + sequence * layout.tokens * layout.stride + h * s.head, layout.stride};
}

/// The addresses of q, k and v, or of their gradients.
template <class T>
struct Operands {
  T *q, *k, *v;
};

template <class T>
struct Head {
  Slice<T> q, k, v;
};

/// Returns head `h` of q of one sequence, with the head of k and v that `h` uses.
template <class T>
Head<T> head_of(const Operands<T>& x, const Sizes& s, int64_t sequence, int64_t h) {
  const int64_t shared = h / s.group();
  return {slice_of(x.q, s.q, s, sequence, h), slice_of(x.k, s.kv, s, sequence, shared),
          slice_of(x.v, s.kv, s, sequence, shared)};
}

/// A block of scores: query rows [row, row + rows) with keys [key, key + keys).
struct Block {
  int64_t row, rows;
  int64_t key, keys;
};

/// Number of rows of the tile that starts at `row`.
inline int64_t rows_of_tile(const Sizes& s, int64_t row) {
  return std::min(tile_rows, s.q.tokens - row);
}

/// Calls body(block) for the blocks of scores of the tile that starts at `row`, in order of keys.
/// Leaves out the keys that no row of the tile sees.
template <class Body>
void for_each_block(const Sizes& s, int64_t row, const Body& body) {
  const int64_t rows = rows_of_tile(s, row);
  const int64_t end = s.visible(row + rows - 1);
  for (int64_t key = 0; key < end; key += block_keys) {
    body(Block{row, rows, key, std::min(block_keys, end - key)});
  }
}

// The arguments of a block's products, which have operands of type T and results in f32. The
// addresses may be null if the caller only needs the workspace's size.

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

/// to (rows, D) = weights (rows, keys) b (keys, D), summed over the blocks of a tile: the first
/// block overwrites `to`, and each later block adds to `to`.
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

/// to (keys, D) = weights (rows, keys)^T b (rows, D), summed over the tiles of all heads of q that
/// share a head of k and v. The last tile of the first head must be processed first: it sees all
/// keys, so its products overwrite the sums of all keys. The products of all other tiles are added.
template <class T>
ProductArgs keys_product(const Sizes& s, const Block& x, const T* weights, Slice<const T> b,
                         float* to, bool first_head) {
  return {.m = x.keys,
          .n = s.head,
          .k = x.rows,
          .a = {weights, 1, x.keys},
          .b = {b.data, b.stride},
          .c = {to, s.head},
          .accumulate = !first_head || x.row + x.rows < s.q.tokens,
          .dtype = dtype_of<T>};
}

/// Returns the workspace of the product that needs the most, in floats, rounded up to whole cache
/// lines. Looks at the products of the backward if `backward` is true, and of the forward if not.
template <class T>
int64_t product_floats(const Sizes& s, bool backward) {
  const Slice<const T> q{nullptr, s.q.stride};
  const Slice<const T> kv{nullptr, s.kv.stride};
  const Slice<const T> y{nullptr, s.y.stride};
  int64_t bytes = 0;
  const auto count = [&](const ProductArgs& args) {
    bytes = std::max(bytes, gemm_workspace_bytes(args, {.threads = 1}));
  };
  for (int64_t tile = 0; tile < s.tiles(); ++tile) {
    // Visits only the tiles of the first 2 * block_keys queries and the last tile. The sizes of all
    // products in other tiles also occur in the visited tiles.
    if (tile >= 2 * block_keys / tile_rows && tile < s.tiles() - 1) continue;
    for_each_block(s, tile * tile_rows, [&](const Block& x) {
      count(scores_product<T>(s, x, q, kv, nullptr));
      count(rows_product<T>(s, x, nullptr, kv, nullptr));
      if (!backward) return;
      count(scores_product<T>(s, x, y, kv, nullptr));
      for (const bool first_head : {true, false}) {
        if (!first_head && s.group() == 1) continue;
        count(keys_product<T>(s, x, nullptr, y, nullptr, first_head));
        count(keys_product<T>(s, x, nullptr, q, nullptr, first_head));
      }
    });
  }
  return (bytes + 63) / 64 * 64 / dtype_size(DType::f32);
}

/// The workspace of one thread. S is the number of keys of a sequence. Scores, the softmax and all
/// sums are f32; a product takes its operands in T. If T is f32, `probabilities` shares the memory
/// of `scores`, and `dscores` shares the memory of `gradient`. Sharing is safe because each element
/// is read before it is overwritten.
template <class T>
struct Scratch {
  float* scores;     // (tile_rows, keys)
  T* probabilities;  // (tile_rows, keys)
  float* gradient;   // (tile_rows, keys), backward only
  T* dscores;        // (tile_rows, keys), backward only
  float* out;        // (tile_rows, D)
  float* maximum;    // (tile_rows)
  float* sum;        // (tile_rows), sums of exponentials; in the backward, of dy * y
  float* dk;         // (S, D), backward only
  float* dv;         // (S, D), backward only
  void* workspace;   // for the largest product

  static constexpr bool shared = std::is_same_v<T, float>;

  /// Sizes of the arrays in floats. All are whole cache lines. score_floats() is the size of
  /// `scores` or of `gradient`. rounded_floats() is the additional size of `probabilities` or of
  /// `dscores`: 0 if T is f32. sum_floats() is the size of dk or of dv.
  static int64_t score_floats(const Sizes& s) { return tile_rows * s.longest_block(); }
  static int64_t rounded_floats(const Sizes& s) {
    return shared ? 0 : score_floats(s) * dtype_size(dtype_of<T>) / dtype_size(DType::f32);
  }
  static int64_t sum_floats(const Sizes& s) {
    return (s.kv.tokens + tile_rows - 1) / tile_rows * tile_rows * s.head;
  }

  /// Number of floats that the constructor's `memory` must have.
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
