// The backward of causal_attention on CUDA. causal_attention.cpp defines the operation, and
// attention.cuh multiplies tiles. With the probabilities p (T, T) and
//   delta = sum over d of dy y,  dp = dy v^T,  ds = p (dp - delta) / sqrt(D):
//   dq = ds k,  dk = ds^T q,  dv = p^T dy.
//
// Two kernels recompute p from the scores and logsumexp (Dao et al., arXiv:2205.14135; Dao,
// arXiv:2307.08691). In the kernel of dq, a thread block owns a tile of queries and loops over
// keys. In the kernel of dk and dv, a thread block owns a tile of keys and loops over queries. The
// two kernels compute seven products of T x T x D, while a single kernel would compute five. But
// with two kernels, a row of dq, dk or dv is summed by one warp alone, in registers and in a fixed
// order. A single kernel would have to add up dq across thread blocks. With float atomics, the
// order of addition would vary. Without atomics, thread blocks would have to wait for one another.
//
// Workspace: delta, f32 (B, H, T): 4 B H T bytes.
#include <algorithm>

#include "core/ops/attention_plain.cuh"
#include "core/ops/causal_attention.h"

namespace tessera::cuda {

namespace {

using namespace attention;

// ---- delta

/// Computes delta (B, H, T) = scale * sum over d of dy y. Unlike delta in the formulas above, this
/// delta includes the factor scale = 1 / sqrt(D), because the kernels subtract it from scale * dp.
/// `lanes` threads share a head of a token, and each thread reads `width` elements at a time.
template <class T, int lanes, int width>
__global__ void __launch_bounds__(256)
    row_products(float* delta, const T* dy, const T* y, Sizes s) {
  struct alignas(width * sizeof(T)) Piece {
    T value[width];
  };
  const int64_t index = (int64_t{blockIdx.x} * 256 + threadIdx.x) / lanes;  // index in (B, T, H)
  const bool there = index < s.pairs * s.tokens;
  float sum = 0;
  if (there) {
    for (int d = static_cast<int>(threadIdx.x) % lanes * width; d < s.head; d += lanes * width) {
      const Piece a = *reinterpret_cast<const Piece*>(dy + index * s.head + d);
      const Piece b = *reinterpret_cast<const Piece*>(y + index * s.head + d);
      TESSERA_UNROLL
      for (int i = 0; i < width; ++i) sum += float(a.value[i]) * float(b.value[i]);
    }
  }
  for (int offset = lanes / 2; offset > 0; offset /= 2) {
    sum += __shfl_xor_sync(whole_warp, sum, offset);
  }
  if (!there || threadIdx.x % lanes != 0) return;
  const int64_t token = index / s.heads;  // index in (B, T)
  const int64_t pair = token / s.tokens * s.heads + index % s.heads;
  delta[pair * s.tokens + token % s.tokens] = sum * s.scale;
}

/// The arguments of both kernels: the kernel of dq, and the kernel of dk and dv.
template <class T>
struct Backward {
  T* dqkv;
  const T* dy;
  const T* qkv;
  const float* logsumexp;
  const float* delta;
};

// ---- on tensor cores

/// p = exp(scale * score - logsumexp). scale_log2 and logsumexp_log2 are scale and logsumexp times
/// log2(e).
__device__ inline float probability(float score, float scale_log2, float logsumexp_log2) {
  return exp2_approximate(fmaf(score, scale_log2, -logsumexp_log2));
}
/// ds = p (scale * dp - delta).
__device__ inline float score_gradient(float p, float dp, float scale, float delta) {
  return p * fmaf(dp, scale, -delta);
}

/// Tiles of the kernel of dq: 128 query rows, 32 per warp, as in the forward. A warp processes
/// `keys` keys at a time, so that scores, their gradients and dq fit into registers.
template <class T, int D>
struct QueryShape {
  static constexpr int M = 2;
  static constexpr int rows = warps * 16 * M;
  static constexpr int keys = D == 64 ? 64 : 32;
  static constexpr int N = keys / 8;

  using Blocks = KeyBlocks<T, D, keys>;
  static constexpr uint32_t tile_bytes = rows * pitch<D>;
  /// Shared memory for queries and dy, and for two blocks of keys and values: 72 KiB (D = 64) or
  /// 102 KiB (D = 128).
  static constexpr uint32_t shared_bytes = 2 * tile_bytes + Blocks::bytes;
};

/// Computes ds in place: on entry, `p` holds the scores and `ds` holds dp. logsumexp and delta have
/// a number for each of the lane's rows.
template <int M, int N>
__device__ void query_weights(const float (&p)[M][N][4], float (&ds)[M][N][4],
                              const float (&logsumexp)[M][2], const float (&delta)[M][2],
                              float scale) {
  const float scale_log2 = scale * log2_e;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    const float logsumexp_log2[2] = {logsumexp[m][0] * log2_e, logsumexp[m][1] * log2_e};
    TESSERA_UNROLL
    for (int n = 0; n < N; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float value = probability(p[m][n][i], scale_log2, logsumexp_log2[i / 2]);
        ds[m][n][i] = score_gradient(value, ds[m][n][i], scale, delta[m][i / 2]);
      }
    }
  }
}

template <class T, int D>
__global__ void __launch_bounds__(threads, 2) query_gradients(Backward<T> x, Sizes s) {
  using Shape = QueryShape<T, D>;
  constexpr int M = Shape::M, N = Shape::N, keys = Shape::keys;
  const Work work = work_of_block(s, Shape::rows, Order::last_tile_first);
  const Head<const T> head = head_of(x.qkv, s, work.pair);
  T* const shared = dynamic_shared<T>();
  const SharedAddress q(shared);
  const SharedAddress dy = q + Shape::tile_bytes;
  const typename Shape::Blocks blocks{dy + Shape::tile_bytes, head, s.tokens};
  load_tile<Shape::rows, D>(q, head.q, work.first, s.tokens);
  load_tile<Shape::rows, D>(dy, slice_of(x.dy, s, work.pair), work.first, s.tokens);
  blocks.load(0);

  const int row = warp() * 16 * M;  // the warp's first row in the tile
  const int first_token = work.first + row;
  const int last_token = first_token + 16 * M - 1;
  const int end = std::min(work.first + Shape::rows, s.tokens);
  float logsumexp[M][2], delta[M][2];  // of the lane's rows
  TESSERA_UNROLL
  for (int i = 0; i < 2 * M; ++i) {
    const int token = first_token + 8 * i + lane() / 4;
    const int64_t at = int64_t{work.pair} * s.tokens + token;
    logsumexp[i / 2][i % 2] = token < s.tokens ? x.logsumexp[at] : 0;
    delta[i / 2][i % 2] = token < s.tokens ? x.delta[at] : 0;
  }
  float dq[M][D / 8][4] = {};
  for (int b = 0; b * keys < end; ++b) {
    wait_for_copies<0>();
    __syncthreads();  // key block b has arrived, and all warps are done with key block b - 1
    if ((b + 1) * keys < end) blocks.load(b + 1);
    const int key = b * keys;
    if (key > last_token) continue;  // the warp's rows see no key of block b
    float p[M][N][4] = {};
    multiply_rows<T, D>(p, q + chunk_offset<D>(row, 0), blocks.keys_of(b));
    hide_later_keys(p, first_token, key);
    float ds[M][N][4] = {};
    multiply_rows<T, D>(ds, dy + chunk_offset<D>(row, 0), blocks.values_of(b));
    query_weights(p, ds, logsumexp, delta, s.scale);
    add_weighted_rows<T, D>(dq, rounded_weights<T>(ds), blocks.keys_of(b));
  }
  const auto one = [](int, int) { return 1.0f; };
  store_rows<D>(head_of(x.dqkv, s, work.pair).q, first_token, s.tokens, dq, one, shared, row);
}

/// Blocks of 64 queries of a head, with their q, dy, logsumexp and delta. Blocks are
/// double-buffered: while warps work on one block, the next block is copied.
template <class T, int D>
struct QueryBlocks {
  static constexpr int queries = 64;
  static constexpr uint32_t tile_bytes = queries * pitch<D>;
  static constexpr uint32_t row_bytes = queries * sizeof(float);
  static constexpr uint32_t block_bytes = 2 * tile_bytes + 2 * row_bytes;
  static constexpr uint32_t bytes = 2 * block_bytes;

  const char* room;
  Slice<const T> q, dy;
  const float* logsumexp;
  const float* delta;
  int tokens;

  __device__ const char* block(int b) const {
    return room + static_cast<uint32_t>(b % 2) * block_bytes;
  }
  /// Returns logsumexp of the block's queries, followed by their delta: `queries` floats each.
  __device__ const float* rows(int b) const {
    return reinterpret_cast<const float*>(block(b) + 2 * tile_bytes);
  }
  __device__ void load(int b) const {
    const SharedAddress to(block(b));
    load_tile<queries, D>(to, q, b * queries, tokens);
    load_tile<queries, D>(to + tile_bytes, dy, b * queries, tokens);
    // The first half of the threads copies logsumexp, and the second half copies delta.
    static_assert(threads == 2 * queries);
    const uint32_t thread = threadIdx.x;
    const int token = b * queries + static_cast<int>(thread) % queries;
    copy_async_4(to + (2 * tile_bytes + thread * 4),
                 (thread < queries ? logsumexp : delta) + token, token < tokens);
    commit_copies();
  }
};

/// Tiles of the kernel of dk and dv. The rows of the products are keys, so that p^T and ds^T are
/// already laid out as operands of the next products. A warp has 32 keys if D is 64, but only 16 if
/// D is 128, because dk and dv of a key are then twice as large. A thread block loads 64 queries at
/// a time. A warp processes `step` of these queries at a time (32 if D is 64, all 64 if D is 128),
/// so that p^T, ds^T, dk and dv fit into registers.
template <class T, int D>
struct KeyShape {
  static constexpr int M = D == 64 ? 2 : 1;
  static constexpr int keys = warps * 16 * M;
  static constexpr int N = 8 / M;
  static constexpr int step = 8 * N;

  using Blocks = QueryBlocks<T, D>;
  static constexpr uint32_t tile_bytes = keys * pitch<D>;
  /// Shared memory for keys and values, and for two blocks of queries: 73 KiB (D = 64) or 103 KiB
  /// (D = 128).
  static constexpr uint32_t shared_bytes = 2 * tile_bytes + Blocks::bytes;
};

/// Computes p^T and ds^T in place: on entry, `p` holds the scores and `ds` holds dp^T, both with
/// keys as rows and queries as columns. logsumexp and delta have a number for each query.
template <int M, int N>
__device__ void key_weights(float (&p)[M][N][4], float (&ds)[M][N][4], const float* logsumexp,
                            const float* delta, float scale) {
  const float scale_log2 = scale * log2_e;
  TESSERA_UNROLL
  for (int n = 0; n < N; ++n) {
    TESSERA_UNROLL
    for (int i = 0; i < 2; ++i) {
      const int query = 8 * n + lane() % 4 * 2 + i;
      const float row_logsumexp = logsumexp[query] * log2_e;
      const float row_delta = delta[query];
      TESSERA_UNROLL
      for (int m = 0; m < M; ++m) {
        TESSERA_UNROLL
        for (int e = i; e < 4; e += 2) {
          p[m][n][e] = probability(p[m][n][e], scale_log2, row_logsumexp);
          ds[m][n][e] = score_gradient(p[m][n][e], ds[m][n][e], scale, row_delta);
        }
      }
    }
  }
}

template <class T, int D>
__global__ void __launch_bounds__(threads, 2) key_gradients(Backward<T> x, Sizes s) {
  using Shape = KeyShape<T, D>;
  constexpr int M = Shape::M, N = Shape::N, queries = Shape::Blocks::queries;
  const Work work = work_of_block(s, Shape::keys, Order::first_tile_first);
  const Head<const T> head = head_of(x.qkv, s, work.pair);
  const int64_t rows = int64_t{work.pair} * s.tokens;
  T* const shared = dynamic_shared<T>();
  T* const shared_v = shared + Shape::tile_bytes / sizeof(T);
  const SharedAddress k(shared), v(shared_v);
  const typename Shape::Blocks blocks{reinterpret_cast<const char*>(shared) + 2 * Shape::tile_bytes,
                                      head.q, slice_of(x.dy, s, work.pair), x.logsumexp + rows,
                                      x.delta + rows, s.tokens};
  load_tile<Shape::keys, D>(k, head.k, work.first, s.tokens);
  load_tile<Shape::keys, D>(v, head.v, work.first, s.tokens);
  const int begin = work.first / queries;
  blocks.load(begin);

  const int row = warp() * 16 * M;  // the warp's first row in the tile
  const int first_key = work.first + row;
  float dk[M][D / 8][4] = {};
  float dv[M][D / 8][4] = {};
  for (int b = begin; b * queries < s.tokens; ++b) {
    wait_for_copies<0>();
    __syncthreads();  // query block b has arrived, and all warps are done with block b - 1
    if ((b + 1) * queries < s.tokens) blocks.load(b + 1);
    for (int query = 0; query < queries; query += Shape::step) {
      const int token = b * queries + query;
      if (token + Shape::step - 1 < first_key) continue;  // these queries see no key of the warp
      const SharedAddress q = SharedAddress(blocks.block(b)) + chunk_offset<D>(query, 0);
      const SharedAddress dy = q + Shape::Blocks::tile_bytes;
      const float* const logsumexp = blocks.rows(b) + query;
      float p[M][N][4] = {};
      multiply_rows<T, D>(p, k + chunk_offset<D>(row, 0), q);
      hide_earlier_queries(p, first_key, token);
      float ds[M][N][4] = {};
      multiply_rows<T, D>(ds, v + chunk_offset<D>(row, 0), dy);
      key_weights(p, ds, logsumexp, logsumexp + queries, s.scale);
      add_weighted_rows<T, D>(dv, rounded_weights<T>(p), dy);
      add_weighted_rows<T, D>(dk, rounded_weights<T>(ds), q);
    }
  }
  const auto one = [](int, int) { return 1.0f; };
  const Head<T> to = head_of(x.dqkv, s, work.pair);
  store_rows<D>(to.k, first_key, s.tokens, dk, one, shared, row);
  store_rows<D>(to.v, first_key, s.tokens, dv, one, shared_v, row);
}

// ---- plain

/// Computes p and ds in place: on entry, `p` holds the score and `ds` holds dp.
__device__ inline void plain_weights(float& p, float& ds, bool visible, float logsumexp,
                                     float delta, float scale) {
  p = visible ? expf(p * scale - logsumexp) : 0.0f;
  ds = p * (ds * scale - delta);
}

/// Returns row[token], or zero for a token past the last one.
__device__ inline float row_value(const float* row, int token, int tokens) {
  return token < tokens ? row[token] : 0.0f;
}

template <class T, int R, int J>
__global__ void __launch_bounds__(plain_threads) query_gradients_plain(Backward<T> x, Sizes s) {
  constexpr int rows = side * R;
  const Work work = work_of_block(s, rows, Order::last_tile_first);
  const Head<const T> head = head_of(x.qkv, s, work.pair);
  const int floats = rows * plain_pitch(s.head);
  float* const q = dynamic_shared<float>();
  float* const dy = q + floats;
  float* const k = dy + floats;
  float* const v = k + floats;
  float* const weights = v + floats;
  load_plain(q, rows, head.q, work.first, s);
  load_plain(dy, rows, slice_of(x.dy, s, work.pair), work.first, s);
  const float* const logsumexp = x.logsumexp + int64_t{work.pair} * s.tokens;
  const float* const delta = x.delta + int64_t{work.pair} * s.tokens;

  float dq[R][J] = {};
  for (int key = 0; key <= work.first; key += rows) {
    __syncthreads();  // all threads are done with the previous tiles
    load_plain(k, rows, head.k, key, s);
    load_plain(v, rows, head.v, key, s);
    __syncthreads();
    float p[R][R] = {};
    float ds[R][R] = {};
    multiply_plain(p, q, k, s.head);
    multiply_plain(ds, dy, v, s.head);
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      const int token = work.first + down() + side * i;
      const float row_logsumexp = row_value(logsumexp, token, s.tokens);
      const float row_delta = row_value(delta, token, s.tokens);
      TESSERA_UNROLL
      for (int j = 0; j < R; ++j) {
        plain_weights(p[i][j], ds[i][j], key + across() + side * j <= token, row_logsumexp,
                      row_delta, s.scale);
      }
    }
    share_plain(weights, ds);
    __syncthreads();
    add_plain(dq, weights, k, s.tokens - key, s.head);
  }
  store_plain(head_of(x.dqkv, s, work.pair).q, work.first, dq, [](int) { return 1.0f; }, s);
}

template <class T, int R, int J>
__global__ void __launch_bounds__(plain_threads) key_gradients_plain(Backward<T> x, Sizes s) {
  constexpr int rows = side * R;
  const Work work = work_of_block(s, rows, Order::first_tile_first);
  const Head<const T> head = head_of(x.qkv, s, work.pair);
  const Slice<const T> head_dy = slice_of(x.dy, s, work.pair);
  const int floats = rows * plain_pitch(s.head);
  float* const k = dynamic_shared<float>();
  float* const v = k + floats;
  float* const q = v + floats;
  float* const dy = q + floats;
  float* const p_weights = dy + floats;
  float* const ds_weights = p_weights + rows * (rows + 1);
  load_plain(k, rows, head.k, work.first, s);
  load_plain(v, rows, head.v, work.first, s);
  const float* const logsumexp = x.logsumexp + int64_t{work.pair} * s.tokens;
  const float* const delta = x.delta + int64_t{work.pair} * s.tokens;

  float dk[R][J] = {};
  float dv[R][J] = {};
  for (int query = work.first; query < s.tokens; query += rows) {
    __syncthreads();  // all threads are done with the previous tiles
    load_plain(q, rows, head.q, query, s);
    load_plain(dy, rows, head_dy, query, s);
    __syncthreads();
    float p[R][R] = {};
    float ds[R][R] = {};
    multiply_plain(p, k, q, s.head);
    multiply_plain(ds, v, dy, s.head);
    TESSERA_UNROLL
    for (int j = 0; j < R; ++j) {
      const int token = query + across() + side * j;
      const float row_logsumexp = row_value(logsumexp, token, s.tokens);
      const float row_delta = row_value(delta, token, s.tokens);
      TESSERA_UNROLL
      for (int i = 0; i < R; ++i) {
        plain_weights(p[i][j], ds[i][j], work.first + down() + side * i <= token, row_logsumexp,
                      row_delta, s.scale);
      }
    }
    share_plain(p_weights, p);
    share_plain(ds_weights, ds);
    __syncthreads();
    add_plain(dv, p_weights, dy, s.tokens - query, s.head);
    add_plain(dk, ds_weights, q, s.tokens - query, s.head);
  }
  const Head<T> to = head_of(x.dqkv, s, work.pair);
  const auto one = [](int) { return 1.0f; };
  store_plain(to.k, work.first, dk, one, s);
  store_plain(to.v, work.first, dv, one, s);
}

// ---- launches

template <class T, int lanes, int width>
void launch_row_products(const Context& context, const Tensor& delta, const Tensor& dy,
                         const Tensor& y, const Sizes& s) {
  const unsigned blocks = blocks_for(s.pairs * s.tokens * lanes, 256);
  launch(context, "attention_backward", {blocks, 256}, row_products<T, lanes, width>,
         delta.data<float>(), dy.data<T>(), y.data<T>(), s);
}

template <class T, int D>
void launch_backward(const Context& context, const Backward<T>& x, const Sizes& s) {
  using Queries = QueryShape<T, D>;
  using Keys = KeyShape<T, D>;
  const unsigned query_tiles = blocks_for(s.pairs * tiles_of(s, Queries::rows), 1);
  const unsigned key_tiles = blocks_for(s.pairs * tiles_of(s, Keys::keys), 1);
  launch(context, "attention_backward", {query_tiles, threads, Queries::shared_bytes},
         query_gradients<T, D>, x, s);
  launch(context, "attention_backward", {key_tiles, threads, Keys::shared_bytes},
         key_gradients<T, D>, x, s);
}

template <class T>
void launch_backward_plain(const Context& context, const Backward<T>& x, const Sizes& s) {
  visit_plain_tile(s.head, [&]<int R, int J>() {
    const unsigned blocks = blocks_for(s.pairs * tiles_of(s, side * R), 1);
    const auto shape = [&](int squares) {
      return LaunchShape{blocks, plain_threads, plain_shared_bytes(side * R, s.head, 4, squares)};
    };
    launch(context, "attention_backward", shape(1), query_gradients_plain<T, R, J>, x, s);
    launch(context, "attention_backward", shape(2), key_gradients_plain<T, R, J>, x, s);
  });
}

}  // namespace

void attention_backward(const Context& context, const Tensor& dqkv, const Tensor& dy,
                        const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
                        int64_t heads) {
  const Sizes s = sizes_of(qkv, heads);
  if (s.empty()) return;
  const Tensor delta = context.workspace(logsumexp.shape());
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    const Backward<T> x{dqkv.data<T>(), dy.data<T>(), qkv.data<T>(), logsumexp.data<float>(),
                        delta.data<float>()};
    if constexpr (sizeof(T) == 2) {
      if (on_tensor_cores(context, s, {&dqkv, &dy, &y, &qkv})) {
        if (s.head == 64) {
          launch_row_products<T, 8, 8>(context, delta, dy, y, s);
          launch_backward<T, 64>(context, x, s);
        } else {
          launch_row_products<T, 16, 8>(context, delta, dy, y, s);
          launch_backward<T, 128>(context, x, s);
        }
        return;
      }
    }
    launch_row_products<T, warp_size, 1>(context, delta, dy, y, s);
    launch_backward_plain(context, x, s);
  });
}

}  // namespace tessera::cuda
