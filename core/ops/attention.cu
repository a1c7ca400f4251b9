// attention on CUDA: matrix products over all heads, with a softmax kernel between q k^T and p v.
// The launchers process up to 256 queries of one sequence (a tile) at a time. So the scores need
// memory for only 256 queries, and stay in the L2 cache unless heads and keys are many. If causal,
// keys that no query of the tile sees are left out.
//
// The backward sums dk and dv of a sequence in f32, over all tiles and over the heads of q that
// share a head of k and v. The last tile is processed first, because its last query sees all keys,
// even if causal. So the first term of every sum comes from the last tile. The first term
// overwrites the memory, and all other terms are added.
#include "core/ops/attention.h"

#include <algorithm>
#include <utility>

#include "core/cuda/kernel.cuh"
#include "core/product.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;
constexpr int64_t tile_queries = 256;

/// The scores of queries [first, first + rows) of one sequence with its keys [0, keys).
struct Tile {
  int64_t heads;
  int64_t head;    // D
  int64_t tokens;  // T
  int64_t first;
  int64_t rows;
  int64_t keys;
  int64_t hidden;  // row r does not see the last max(0, hidden - r) keys
  float scale;

  int64_t all_rows() const { return heads * rows; }
  __device__ int64_t visible(int64_t row) const {
    return std::min(keys, keys - hidden + row);
  }
};

/// The row of scores (H, rows, keys) that this warp works on.
struct WarpRow {
  int lane = static_cast<int>(threadIdx.x) % warp_size;
  int64_t index = int64_t{blockIdx.x} * warps + static_cast<int>(threadIdx.x) / warp_size;
  int64_t h, row;

  __device__ explicit WarpRow(const Tile& tile)
      : h(index / tile.rows), row(index % tile.rows) {}
};

/// Computes the probabilities from the scores, and rounds the probabilities to the type T.
/// Overwrites `scores` with intermediate results. If T is float, `probabilities` may share the
/// memory of `scores`. Also writes the logsumexp (H, T) of the scaled scores.
template <class T>
__global__ void __launch_bounds__(threads)
    attention_softmax_kernel(T* probabilities, float* scores, float* logsumexp, Tile tile) {
  const WarpRow at(tile);
  if (at.h >= tile.heads) return;
  const int64_t visible = tile.visible(at.row);
  float* own = scores + at.index * tile.keys;
  float highest = -std::numeric_limits<float>::infinity();
  for (int64_t s = at.lane; s < visible; s += warp_size) highest = fmaxf(highest, own[s]);
  highest = warp_max(highest) * tile.scale;
  float sum = 0;
  for (int64_t s = at.lane; s < visible; s += warp_size) {
    own[s] = expf(own[s] * tile.scale - highest);
    sum += own[s];
  }
  sum = warp_sum(sum);
  const float normalizer = 1.0f / sum;
  T* to = probabilities + at.index * tile.keys;
  for (int64_t s = at.lane; s < tile.keys; s += warp_size) {
    to[s] = rounded<T>(s < visible ? own[s] * normalizer : 0.0f);
  }
  if (at.lane == 0) logsumexp[at.h * tile.tokens + tile.first + at.row] = highest + logf(sum);
}

/// delta (H, rows) = sum over d of dy * y, with dy and y (T, H, D) of one sequence.
template <class T>
__global__ void __launch_bounds__(threads)
    attention_delta_kernel(float* delta, const T* dy, const T* y, Tile tile) {
  const WarpRow at(tile);
  if (at.h >= tile.heads) return;
  const int64_t begin = ((tile.first + at.row) * tile.heads + at.h) * tile.head;
  float sum = 0;
  for (int64_t d = at.lane; d < tile.head; d += warp_size) {
    sum += float(dy[begin + d]) * float(y[begin + d]);
  }
  sum = warp_sum(sum);
  if (at.lane == 0) delta[at.index] = sum;
}

template <class T>
struct ScoreGradient {
  T* probabilities;  // if T is float, may be the memory of `scores`
  T* dscores;        // if T is float, may be the memory of `gradient`
  const float* scores;
  const float* gradient;  // gradient of the probabilities
  const float* logsumexp;
  const float* delta;
};

/// Recomputes the probabilities, and computes the gradient of the scores.
template <class T>
__global__ void __launch_bounds__(threads)
    attention_scores_kernel(ScoreGradient<T> args, Tile tile) {
  const WarpRow at(tile);
  if (at.h >= tile.heads) return;
  const int64_t visible = tile.visible(at.row);
  const int64_t begin = at.index * tile.keys;
  const float normalizer = args.logsumexp[at.h * tile.tokens + tile.first + at.row];
  const float delta = args.delta[at.index];
  for (int64_t s = at.lane; s < tile.keys; s += warp_size) {
    float probability = 0;
    float dscore = 0;
    if (s < visible) {
      probability = expf(args.scores[begin + s] * tile.scale - normalizer);
      dscore = probability * (args.gradient[begin + s] - delta) * tile.scale;
    }
    args.probabilities[begin + s] = rounded<T>(probability);
    args.dscores[begin + s] = rounded<T>(dscore);
  }
}

/// Computes the products of one sequence. k, v, dk and dv have G heads, and all other operands have
/// H heads. So a product needs H / G batched multiplications, numbered from j = 0. Multiplication j
/// pairs each head g of k, v, dk or dv with head g H / G + j of the other operands.
template <class T>
class Sequence {
 public:
  Sequence(const Context& context, const AttentionInputs& in, int64_t b)
      : context_(context),
        b_(b),
        heads_(in.q.size(2)),
        kv_heads_(in.k.size(2)),
        head_(in.q.size(3)),
        tokens_(in.q.size(1)),
        keys_(in.k.size(1)),
        scale_(in.scale),
        causal_(in.causal) {}

  int64_t group() const { return heads_ / kv_heads_; }
  Tile tile(int64_t first) const {
    const int64_t rows = std::min(tile_queries, tokens_ - first);
    const int64_t keys = causal_ ? first + rows + keys_ - tokens_ : keys_;
    return {heads_, head_, tokens_, first, rows, keys, causal_ ? rows - 1 : 0, scale_};
  }

  /// Returns the sequence's part of x (B, T, H, D) or (B, S, G, D).
  T* of(const Tensor& x) const { return x.data<T>() + b_ * x.size(1) * x.size(2) * x.size(3); }
  float* of_logsumexp(const Tensor& x) const { return x.data<float>() + b_ * heads_ * tokens_; }

  /// to (H, rows, keys) = a (T, H, D) b (S, G, D)^T, for the tile's queries.
  void scores(const Tile& t, float* to, const T* a, const T* b) const {
    for (int64_t j = 0; j < group(); ++j) {
      multiply(context_, {.batch = kv_heads_,
                          .m = t.rows,
                          .n = t.keys,
                          .k = head_,
                          .a = queries(t, a, j),
                          .b = {b, 1, kv_heads_ * head_, head_},
                          .c = {to + j * t.rows * t.keys, t.keys, group() * t.rows * t.keys},
                          .dtype = dtype_of<T>});
    }
  }
  /// to (H, rows, D) = weights (H, rows, keys) b (S, G, D), over the tile's keys.
  void rows(const Tile& t, float* to, const T* weights, const T* b) const {
    for (int64_t j = 0; j < group(); ++j) {
      multiply(context_, {.batch = kv_heads_,
                          .m = t.rows,
                          .n = head_,
                          .k = t.keys,
                          .a = {weights + j * t.rows * t.keys, t.keys, 1,
                                group() * t.rows * t.keys},
                          .b = {b, kv_heads_ * head_, 1, head_},
                          .c = {to + j * t.rows * head_, head_, group() * t.rows * head_},
                          .dtype = dtype_of<T>});
    }
  }
  /// sum (G, S, D) += weights (H, rows, keys)^T b (T, H, D). The last tile must be processed first:
  /// its first multiplication (j = 0) overwrites `sum` instead of adding to it.
  void keys(const Tile& t, float* sum, const T* weights, const T* b) const {
    for (int64_t j = 0; j < group(); ++j) {
      multiply(context_, {.batch = kv_heads_,
                          .m = t.keys,
                          .n = head_,
                          .k = t.rows,
                          .a = {weights + j * t.rows * t.keys, 1, t.keys,
                                group() * t.rows * t.keys},
                          .b = queries(t, b, j),
                          .c = {sum, head_, keys_ * head_},
                          .accumulate = j > 0 || t.first + t.rows < tokens_,
                          .dtype = dtype_of<T>});
    }
  }

 private:
  ConstMatrix queries(const Tile& t, const T* x, int64_t j) const {
    return {x + (t.first * heads_ + j) * head_, heads_ * head_, 1, group() * head_};
  }

  Context context_;
  int64_t b_, heads_, kv_heads_, head_, tokens_, keys_;
  float scale_;
  bool causal_;
};

/// Workspace for a tile's scores (H, rows, keys): `wide` in f32 and `narrow` in the type T. If T is
/// float, `narrow` is the memory of `wide`.
template <class T>
struct Scores {
  Tensor wide, narrow;

  Scores(const Context& context, const AttentionInputs& in) {
    const Shape shape{in.q.size(2), std::min(in.q.size(1), tile_queries), in.k.size(1)};
    wide = context.workspace(shape);
    narrow = in.q.dtype() == DType::f32 ? wide : context.workspace(shape, in.q.dtype());
  }
  float* f32() const { return wide.template data<float>(); }
  T* rounded() const { return narrow.template data<T>(); }
};

/// Allocates workspace for a tile's product (H, rows, D), in f32.
Tensor product_room(const Context& context, const AttentionInputs& in) {
  return context.workspace({in.q.size(2), std::min(in.q.size(1), tile_queries), in.q.size(3)});
}

/// to (rows, heads, D) = from (heads, rows, D) with the first two axes exchanged, rounded to T. A
/// thread writes one element.
template <class T>
__global__ void __launch_bounds__(threads)
    heads_inward_kernel(T* to, const float* from, int64_t heads, int64_t rows, int64_t head) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= rows * heads * head) return;
  const int64_t token = element / (heads * head);
  const int64_t h = element / head % heads;
  to[element] = rounded<T>(from[(h * rows + token) * head + element % head]);
}

/// Copies a product (heads, rows, D) into the layout of tensors (rows, heads, D), rounded to T.
template <class T>
void heads_inward(const Context& context, T* to, const float* from, int64_t heads, int64_t rows,
                  int64_t head) {
  launch(context, "attention_heads", {blocks_for(rows * heads * head, threads), threads},
         heads_inward_kernel<T>, to, from, heads, rows, head);
}

LaunchShape row_shape(const Tile& tile) { return {blocks_for(tile.all_rows(), warps), threads}; }

}  // namespace

void grouped_attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                               const AttentionInputs& in) {
  visit_float(y.dtype(), "attention", [&]<class T>() {
    const Scores<T> scores(context, in);
    const Tensor out = product_room(context, in);
    for (int64_t b = 0; b < in.q.size(0); ++b) {
      const Sequence<T> sequence(context, in, b);
      for (int64_t first = 0; first < in.q.size(1); first += tile_queries) {
        const Tile tile = sequence.tile(first);
        sequence.scores(tile, scores.f32(), sequence.of(in.q), sequence.of(in.k));
        launch(context, "attention_softmax", row_shape(tile), attention_softmax_kernel<T>,
               scores.rounded(), scores.f32(), sequence.of_logsumexp(logsumexp), tile);
        sequence.rows(tile, out.data<float>(), scores.rounded(), sequence.of(in.v));
        heads_inward(context, sequence.of(y) + first * tile.heads * tile.head, out.data<float>(),
                     tile.heads, tile.rows, tile.head);
      }
    }
  });
}

namespace {

/// Workspace of the backward, used for one sequence after the other.
template <class T>
struct BackwardScratch {
  Scores<T> scores, gradient;
  Tensor out, delta;  // (H, R, D), (H, R), with R = min(T, 256)
  Tensor dk, dv;      // (G, S, D)

  BackwardScratch(const Context& context, const AttentionInputs& in)
      : scores(context, in), gradient(context, in), out(product_room(context, in)) {
    const Shape of_keys{in.k.size(2), in.k.size(1), in.k.size(3)};
    delta = context.workspace({out.size(0), out.size(1)});
    dk = context.workspace(of_keys);
    dv = context.workspace(of_keys);
  }
};

/// Computes dq, dk and dv of one sequence. dk and dv are left in `scratch`, in f32.
template <class T>
void backward_sequence(const Context& context, const Sequence<T>& sequence, T* dq,
                       const AttentionResults& results, const AttentionInputs& in,
                       const BackwardScratch<T>& scratch) {
  const T* dy = sequence.of(results.dy);
  float* const delta = scratch.delta.template data<float>();
  float* const out = scratch.out.template data<float>();
  for (int64_t tiles = (in.q.size(1) + tile_queries - 1) / tile_queries; tiles > 0; --tiles) {
    const Tile tile = sequence.tile((tiles - 1) * tile_queries);
    launch(context, "attention_delta", row_shape(tile), attention_delta_kernel<T>, delta, dy,
           sequence.of(results.y), tile);
    sequence.scores(tile, scratch.scores.f32(), sequence.of(in.q), sequence.of(in.k));
    sequence.scores(tile, scratch.gradient.f32(), dy, sequence.of(in.v));
    const ScoreGradient<T> args{.probabilities = scratch.scores.rounded(),
                                .dscores = scratch.gradient.rounded(),
                                .scores = scratch.scores.f32(),
                                .gradient = scratch.gradient.f32(),
                                .logsumexp = sequence.of_logsumexp(results.logsumexp),
                                .delta = delta};
    launch(context, "attention_scores", row_shape(tile), attention_scores_kernel<T>, args, tile);
    sequence.keys(tile, scratch.dv.template data<float>(), args.probabilities, dy);
    sequence.keys(tile, scratch.dk.template data<float>(), args.dscores, sequence.of(in.q));
    sequence.rows(tile, out, args.dscores, sequence.of(in.k));
    heads_inward(context, dq + tile.first * tile.heads * tile.head, out, tile.heads, tile.rows,
                 tile.head);
  }
}

}  // namespace

void grouped_attention_backward(const Context& context, const AttentionGradients& gradients,
                                const AttentionResults& results, const AttentionInputs& in) {
  visit_float(in.q.dtype(), "attention", [&]<class T>() {
    const BackwardScratch<T> scratch(context, in);
    for (int64_t b = 0; b < in.q.size(0); ++b) {
      const Sequence<T> sequence(context, in, b);
      backward_sequence(context, sequence, sequence.of(gradients.dq), results, in, scratch);
      for (const auto& [to, from] : {std::pair{sequence.of(gradients.dk), scratch.dk},
                                     std::pair{sequence.of(gradients.dv), scratch.dv}}) {
        heads_inward(context, to, from.template data<float>(), in.k.size(2), in.k.size(1),
                     in.k.size(3));
      }
    }
  });
}

}  // namespace tessera::cuda
