// The forward of causal_attention on CUDA. causal_attention.cpp defines the operation, and
// attention.cuh multiplies tiles. A thread block has a tile of query rows of one head. The block
// loops over the keys that these rows see. For each row it keeps a running maximum of the scores,
// and a running sum of their exponentials (Dao et al., arXiv:2205.14135; Dao, arXiv:2307.08691).
// The bits of a row do not depend on other sequences or heads.
#include <algorithm>

#include "core/ops/attention_plain.cuh"
#include "core/ops/causal_attention.h"

namespace tessera::cuda {

namespace {

using namespace attention;

/// Tiles of the forward: 128 query rows, 32 per warp. A warp reads each key and value from shared
/// memory once for all its rows. With 32 rows (M = 2), it reads half as much per row as with 16
/// rows, so shared memory keeps up with the tensor cores. A thread block copies 64 keys at a time,
/// and a warp processes 32 keys at a time. The warp's scores and rows of y then fill 96 registers
/// per thread (D = 64) or 160 (D = 128), and no register is spilled.
template <class T, int D>
struct ForwardShape {
  static constexpr int M = 2;
  static constexpr int rows = warps * 16 * M;
  static constexpr int keys = 64;  // copied at a time
  static constexpr int part = 32;  // multiplied at a time
  static constexpr int N = part / 8;
  /// Thread blocks that a multiprocessor can run at the same time if its shared memory is large
  /// enough: one block computes exponentials while another block multiplies.
  static constexpr int resident = D == 64 ? 3 : 2;

  using Blocks = KeyBlocks<T, D, keys>;
  static constexpr uint32_t tile_bytes = rows * pitch<D>;
  /// Shared memory for the queries, and for two blocks of keys and values: 54 KiB (D = 64) or
  /// 102 KiB (D = 128).
  static constexpr uint32_t shared_bytes = tile_bytes + Blocks::bytes;
};

/// The running maximum of the scores, and the running sum of their exponentials, for the rows that
/// a lane has: [m][half] is for row 16 m + 8 half + lane / 4 of its warp. The sums cover only the
/// lane's own columns.
template <int M>
struct RunningRows {
  float maximum[M][2];
  float sum[M][2];
};

/// Combines four numbers: the `value` of each of the four lanes that share a row. All four lanes
/// get the result.
template <class Combine>
__device__ float combine_row(float value, const Combine& combine) {
  value = combine(value, __shfl_xor_sync(whole_warp, value, 1));
  return combine(value, __shfl_xor_sync(whole_warp, value, 2));
}

/// Raises a row's maximum if a score of the row is larger. Multiplies the row's sum and outputs so
/// far by the factor exp(scale * (old maximum - new maximum)). The old maximum is -infinity at
/// first. If scores are finite, the new maximum is finite, because every row sees the first key.
/// The factor is then not NaN.
///
/// If no maximum of the warp rises, all factors are exactly 1, and the warp skips the
/// multiplications. After a few keys, this is the usual case.
template <int M, int N, int O>
__device__ void raise_maxima(RunningRows<M>& running, float (&out)[M][O][4],
                             const float (&scores)[M][N][4], float scale_log2) {
  float highest[M][2];
  bool rises = false;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      float value = running.maximum[m][half];
      TESSERA_UNROLL
      for (int n = 0; n < N; ++n) {
        const float* const two = scores[m][n] + 2 * half;
        value = fmaxf(value, fmaxf(two[0], two[1]));
      }
      highest[m][half] = combine_row(value, [](float a, float b) { return fmaxf(a, b); });
      rises = rises || highest[m][half] > running.maximum[m][half];
    }
  }
  if (!__any_sync(whole_warp, rises)) return;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float correction =
          exp2_approximate((running.maximum[m][half] - highest[m][half]) * scale_log2);
      running.maximum[m][half] = highest[m][half];
      running.sum[m][half] *= correction;
      TESSERA_UNROLL
      for (int o = 0; o < O; ++o) {
        out[m][o][2 * half] *= correction;
        out[m][o][2 * half + 1] *= correction;
      }
    }
  }
}

/// Replaces scores by exp(scale * (score - maximum)), and adds the results to the rows' sums.
template <int M, int N>
__device__ void exponentials(RunningRows<M>& running, float (&scores)[M][N][4], float scale_log2) {
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    const float offset[2] = {running.maximum[m][0] * scale_log2,
                             running.maximum[m][1] * scale_log2};
    TESSERA_UNROLL
    for (int n = 0; n < N; ++n) {
      TESSERA_UNROLL
      for (int i = 0; i < 4; ++i) {
        scores[m][n][i] = exp2_approximate(fmaf(scores[m][n][i], scale_log2, -offset[i / 2]));
        running.sum[m][i / 2] += scores[m][n][i];
      }
    }
  }
}

/// Divides each row of `out` by the row's sum of exponentials. Writes the rows to y, and their
/// logsumexp to logsumexp (T). The tile starts at token `first`, and the warp's rows start at row
/// `row` of the tile.
template <class T, int D, int M>
__device__ void finish_rows(Slice<T> y, float* logsumexp, int first, int row,
                            const RunningRows<M>& running, const float (&out)[M][D / 8][4], T* tile,
                            const Sizes& s) {
  float normalizer[M][2];
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    TESSERA_UNROLL
    for (int half = 0; half < 2; ++half) {
      const float sum =
          combine_row(running.sum[m][half], [](float a, float b) { return a + b; });
      normalizer[m][half] = 1.0f / sum;
      const int token = first + row + 16 * m + 8 * half + lane() / 4;
      if (lane() % 4 == 0 && token < s.tokens) {
        logsumexp[token] = running.maximum[m][half] * s.scale + logf(sum);
      }
    }
  }
  const auto factor = [&](int m, int half) { return normalizer[m][half]; };
  store_rows<D>(y, first + row, s.tokens, out, factor, tile, row);
}

template <class T, int D>
__global__ void __launch_bounds__(threads, ForwardShape<T, D>::resident)
    forward_tile(T* y, float* logsumexp, const T* qkv, Sizes s) {
  using Shape = ForwardShape<T, D>;
  constexpr int M = Shape::M, keys = Shape::keys;
  const Work work = work_of_block(s, Shape::rows, Order::last_tile_first);
  const Head<const T> head = head_of(qkv, s, work.pair);
  T* const shared = dynamic_shared<T>();
  const SharedAddress q(shared);
  const typename Shape::Blocks blocks{q + Shape::tile_bytes, head, s.tokens};
  load_tile<Shape::rows, D>(q, head.q, work.first, s.tokens);
  blocks.load(0);

  const int row = warp() * 16 * M;  // the warp's first row in the tile
  const int first_token = work.first + row;
  const int last_token = first_token + 16 * M - 1;
  const int end = std::min(work.first + Shape::rows, s.tokens);
  const float scale_log2 = s.scale * log2_e;
  float out[M][D / 8][4] = {};
  RunningRows<M> running;
  TESSERA_UNROLL
  for (int m = 0; m < M; ++m) {
    running.maximum[m][0] = running.maximum[m][1] = -infinity;
    running.sum[m][0] = running.sum[m][1] = 0;
  }
  for (int b = 0; b * keys < end; ++b) {
    wait_for_copies<0>();
    __syncthreads();  // key block b has arrived, and all warps are done with key block b - 1
    if ((b + 1) * keys < end) blocks.load(b + 1);
    // An unrolled loop would need registers for both halves of key block b at the same time.
    TESSERA_NO_UNROLL
    for (int i = 0; i < keys; i += Shape::part) {
      const int key = b * keys + i;
      if (key > last_token) break;  // the warp's rows see none of these keys
      float scores[M][Shape::N][4] = {};
      const uint32_t offset = chunk_offset<D>(i, 0);
      multiply_rows<T, D>(scores, q + chunk_offset<D>(row, 0), blocks.keys_of(b) + offset);
      hide_later_keys(scores, first_token, key);
      raise_maxima(running, out, scores, scale_log2);
      exponentials(running, scores, scale_log2);
      add_weighted_rows<T, D>(out, rounded_weights<T>(scores), blocks.values_of(b) + offset);
    }
  }
  finish_rows<T, D>(slice_of(y, s, work.pair), logsumexp + int64_t{work.pair} * s.tokens,
                    work.first, row,
                    running, out, shared, s);
}

// ---- plain

/// Does what raise_maxima and exponentials do, for one row of scores: raises the row's maximum, and
/// replaces the scores by exponentials, which are added to the sum. The row's scores are divided
/// among 16 neighbouring lanes, R scores each. Returns the factor by which the row's output so far
/// must be multiplied.
template <int R>
__device__ float softmax_row_plain(float (&scores)[R], float& maximum, float& sum, float scale) {
  float highest = maximum;
  TESSERA_UNROLL
  for (int j = 0; j < R; ++j) highest = fmaxf(highest, scores[j]);
  for (int offset = side / 2; offset > 0; offset /= 2) {
    highest = fmaxf(highest, __shfl_xor_sync(whole_warp, highest, offset));
  }
  const float correction = expf((maximum - highest) * scale);
  sum *= correction;
  TESSERA_UNROLL
  for (int j = 0; j < R; ++j) {
    scores[j] = expf((scores[j] - highest) * scale);
    sum += scores[j];
  }
  maximum = highest;
  return correction;
}

template <class T, int R, int J>
__global__ void __launch_bounds__(plain_threads)
    forward_plain(T* y, float* logsumexp, const T* qkv, Sizes s) {
  constexpr int rows = side * R;
  const Work work = work_of_block(s, rows, Order::last_tile_first);
  const Head<const T> head = head_of(qkv, s, work.pair);
  float* const q = dynamic_shared<float>();
  float* const k = q + rows * plain_pitch(s.head);
  float* const v = k + rows * plain_pitch(s.head);
  float* const weights = v + rows * plain_pitch(s.head);
  load_plain(q, rows, head.q, work.first, s);

  float out[R][J] = {};
  float maximum[R], sum[R];  // the sum covers only the thread's own columns
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    maximum[i] = -infinity;
    sum[i] = 0;
  }
  for (int key = 0; key <= work.first; key += rows) {
    __syncthreads();  // all threads are done with the previous tiles
    load_plain(k, rows, head.k, key, s);
    load_plain(v, rows, head.v, key, s);
    __syncthreads();
    float scores[R][R] = {};
    multiply_plain(scores, q, k, s.head);
    TESSERA_UNROLL
    for (int i = 0; i < R; ++i) {
      TESSERA_UNROLL
      for (int j = 0; j < R; ++j) {
        if (key + across() + side * j > work.first + down() + side * i) scores[i][j] = -infinity;
      }
      const float correction = softmax_row_plain(scores[i], maximum[i], sum[i], s.scale);
      TESSERA_UNROLL
      for (int j = 0; j < J; ++j) out[i][j] *= correction;
    }
    share_plain(weights, scores);
    __syncthreads();
    add_plain(out, weights, v, s.tokens - key, s.head);
  }
  TESSERA_UNROLL
  for (int i = 0; i < R; ++i) {
    for (int offset = side / 2; offset > 0; offset /= 2) {
      sum[i] += __shfl_xor_sync(whole_warp, sum[i], offset);
    }
    const int token = work.first + down() + side * i;
    if (across() == 0 && token < s.tokens) {
      logsumexp[int64_t{work.pair} * s.tokens + token] = maximum[i] * s.scale + logf(sum[i]);
    }
  }
  store_plain(slice_of(y, s, work.pair), work.first, out, [&](int i) { return 1.0f / sum[i]; }, s);
}

template <class T, int D>
void launch_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                    const Tensor& qkv, const Sizes& s) {
  using Shape = ForwardShape<T, D>;
  const unsigned blocks = blocks_for(s.pairs * tiles_of(s, Shape::rows), 1);
  launch(context, "attention_forward", {blocks, threads, Shape::shared_bytes}, forward_tile<T, D>,
         y.data<T>(), logsumexp.data<float>(), qkv.data<T>(), s);
}

template <class T>
void launch_forward_plain(const Context& context, const Tensor& y, const Tensor& logsumexp,
                          const Tensor& qkv, const Sizes& s) {
  visit_plain_tile(s.head, [&]<int R, int J>() {
    launch(context, "attention_forward",
           {blocks_for(s.pairs * tiles_of(s, side * R), 1), plain_threads,
            plain_shared_bytes(side * R, s.head, 3, 1)},
           forward_plain<T, R, J>, y.data<T>(), logsumexp.data<float>(), qkv.data<T>(), s);
  });
}

}  // namespace

void attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                       const Tensor& qkv, int64_t heads) {
  const Sizes s = sizes_of(qkv, heads);
  if (s.empty()) return;
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    if constexpr (sizeof(T) == 2) {
      if (on_tensor_cores(context, s, {&y, &qkv})) {
        return s.head == 64 ? launch_forward<T, 64>(context, y, logsumexp, qkv, s)
                            : launch_forward<T, 128>(context, y, logsumexp, qkv, s);
      }
    }
    launch_forward_plain<T>(context, y, logsumexp, qkv, s);
  });
}

}  // namespace tessera::cuda
