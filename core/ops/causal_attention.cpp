// causal_attention: y (B, T, C) from packed qkv (B, T, 3C): for each sequence and head h of H,
//   y[t] = sum over s <= t of softmax over s (q[t] k[s] / sqrt(D)) v[s],  D = C / H.
//
// The T x T scores of a head never exist: tiles of query rows meet blocks of keys, and a running
// maximum and sum make the softmax exact (Dao et al., arXiv:2205.14135). The forward keeps
// logsumexp (B, H, T), from which the backward computes the probabilities again.
//
// One thread computes a head, or in the forward a tile, from its first to its last product. So the
// bits depend neither on the number of threads nor on the other sequences of the batch.
#include <cmath>
#include <limits>
#include <type_traits>

#include <omp.h>

#include "core/autograd.h"
#include "core/gemm.h"
#include "core/ops.h"
#include "core/ops/causal_attention.h"
#include "core/trace.h"
#include "core/vector_math.h"

namespace tessera::ops {

Tensor causal_attention(const Tensor& qkv, int64_t heads) {
  TESSERA_CHECK(qkv.rank() == 3 && qkv.size(2) % 3 == 0,
                "causal_attention: qkv has shape {}, expected [B, T, 3C]", qkv.shape());
  const int64_t channels = qkv.size(2) / 3;
  TESSERA_CHECK(heads > 0 && channels % heads == 0,
                "causal_attention: {} channels cannot be divided into {} heads", channels, heads);
  const trace::Scope scope("causal_attention");
  const InUse in_use({&qkv});
  const int64_t batch = qkv.size(0);
  const int64_t tokens = qkv.size(1);
  Tensor y = Tensor::empty({batch, tokens, channels}, qkv.dtype(), qkv.device());
  Tensor logsumexp = Tensor::empty({batch, heads, tokens}, DType::f32, qkv.device());
  kernels::attention_forward(current_context(qkv.device()), y, logsumexp, qkv, heads);

  return record(
      "causal_attention", y, {qkv},
      [qkv = saved(qkv), y = saved(y), logsumexp, heads](const Tensor& dy, InputGradients& grads) {
        const InUse in_backward({&qkv});
        kernels::attention_backward(current_context(dy.device()), grads.destination(0), dy, y,
                                    logsumexp, qkv, heads);
      });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

constexpr int64_t tile_rows = attention_tile_rows;
constexpr int64_t block_keys = attention_block_keys;
constexpr float infinity = std::numeric_limits<float>::infinity();

struct Sizes {
  int64_t batch, tokens, heads, channels;
  int64_t head = 0;   // D
  float scale = 0;    // of the scores
  int64_t tiles = 0;  // of a head's query rows
  int64_t keys = 0;   // in the longest block
  Device device = {};

  Sizes(const Tensor& qkv, int64_t head_count)
      : batch(qkv.size(0)),
        tokens(qkv.size(1)),
        heads(head_count),
        channels(qkv.size(2) / 3),
        head(channels / heads),
        scale(1.0f / std::sqrt(static_cast<float>(head))),
        tiles((tokens + tile_rows - 1) / tile_rows),
        keys(std::min(tokens, block_keys)),
        device(qkv.device()) {}

  int64_t packed() const { return 3 * channels; }  // between tokens of qkv
  bool empty() const { return batch * tokens * channels == 0; }
};

/// A matrix with T elements or f32 ones, of which one head's rows are read or written.
template <class T>
struct Slice {
  T* data;
  int64_t stride;  // between tokens

  Slice rows(int64_t first) const { return {data + first * stride, stride}; }
};

template <class T>
struct Head {
  Slice<const T> q, k, v;  // (T, D) each
};

template <class T>
Head<T> head_of(const T* qkv, const Sizes& s, int64_t sequence, int64_t head) {
  const T* q = qkv + sequence * s.tokens * s.packed() + head * s.head;
  return {{q, s.packed()}, {q + s.channels, s.packed()}, {q + 2 * s.channels, s.packed()}};
}

/// A product of matrices of T into one of f32, on the calling thread alone.
template <class T>
void product(const Sizes& s, GemmArgs args) {
  args.dtype = dtype_of<T>;
  args.threads = 1;
  args.device = s.device;
  gemm(args);
}

template <class T>
ConstMatrix plain(Slice<T> x) {
  return {x.data, x.stride, 1};
}
template <class T>
ConstMatrix transposed(Slice<T> x) {
  return {x.data, 1, x.stride};
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

  static constexpr bool shared = std::is_same_v<T, float>;

  /// Of a tile of scores, and of one of T. Like all that lies here a multiple of a cache line.
  static int64_t score_floats(const Sizes& s) { return tile_rows * s.keys; }
  static int64_t rounded_floats(const Sizes& s) {
    return shared ? 0 : score_floats(s) * dtype_size(dtype_of<T>) / dtype_size(DType::f32);
  }

  static int64_t floats(const Sizes& s, bool backward) {
    const int64_t pair = score_floats(s) + rounded_floats(s);
    return (backward ? 2 : 1) * pair + tile_rows * (s.head + 2);
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
  }
};

/// Threads for `tasks` pieces of about `flops` each.
int team_size(int64_t tasks, int64_t flops) {
  const int64_t useful = worth_a_team(tasks, flops) ? tasks : 1;
  return static_cast<int>(std::min<int64_t>(thread_count(), std::max<int64_t>(1, useful)));
}

/// body(task) for each task, on a team.
template <class Body>
void run_tasks(int64_t tasks, int threads, const Body& body) {
  TeamErrors errors;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) errors.guard([&] { body(task); });
  errors.rethrow();
}

template <class T>
void convert_row(T* to, const float* from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = rounded<T>(from[i]);
}

/// Sets hidden scores to -infinity as far as the last vector with a visible one reaches. Returns
/// that end: up to there a row is computed, in loops without a remainder.
int64_t mask_row(float* scores, int64_t visible, int64_t keys) {
  const int64_t end = std::min(keys, (visible + 15) / 16 * 16);
  for (int64_t i = visible; i < end; ++i) scores[i] = -infinity;
  return end;
}

/// Scores of one row become exp(scale * score - maximum), zero from `end` on; updates the row's
/// running maximum and sum. Returns what the sums before this block have to be multiplied by.
float softmax_row(float* scores, int64_t end, int64_t keys, float scale, float& maximum,
                  float& sum) {
  float highest = -infinity;
#pragma omp simd reduction(max : highest)
  for (int64_t i = 0; i < end; ++i) highest = scores[i] > highest ? scores[i] : highest;
  highest = std::max(maximum, highest * scale);
  float block_sum = 0;
#pragma omp simd reduction(+ : block_sum)
  for (int64_t i = 0; i < end; ++i) {
    const float value = exp_f32(multiply_add(scores[i], scale, -highest));
    scores[i] = value;
    block_sum += value;
  }
  std::fill(scores + end, scores + keys, 0.0f);
  const float correction = exp_f32(maximum - highest);
  maximum = highest;
  sum = sum * correction + block_sum;
  return correction;
}

/// Rows [first, first + rows) of one head: y and logsumexp.
template <class T>
void forward_tile(const Sizes& s, const Head<T>& head, int64_t first, Slice<T> y, float* logsumexp,
                  const Scratch<T>& scratch) {
  const int64_t rows = std::min(tile_rows, s.tokens - first);
  const int64_t key_end = first + rows;  // of what the last row sees
  std::fill_n(scratch.maximum, rows, -infinity);
  std::fill_n(scratch.sum, rows, 0.0f);
  for (int64_t key = 0; key < key_end; key += block_keys) {
    const int64_t keys = std::min(block_keys, key_end - key);
    product<T>(s, {.m = rows, .n = keys, .k = s.head, .a = plain(head.q.rows(first)),
                   .b = transposed(head.k.rows(key)), .c = {scratch.scores, keys}});
    for (int64_t r = 0; r < rows; ++r) {
      // Tiles and blocks start on multiples of tile_rows, so every row sees a key of the block.
      float* scores = scratch.scores + r * keys;
      const int64_t end = mask_row(scores, std::min(keys, first + r + 1 - key), keys);
      const float correction =
          softmax_row(scores, end, keys, s.scale, scratch.maximum[r], scratch.sum[r]);
      if (!scratch.shared) convert_row(scratch.probabilities + r * keys, scores, keys);
      if (key == 0) continue;
      for (int64_t d = 0; d < s.head; ++d) scratch.out[r * s.head + d] *= correction;
    }
    product<T>(s, {.m = rows, .n = s.head, .k = keys, .a = {scratch.probabilities, keys},
                   .b = plain(head.v.rows(key)), .c = {scratch.out, s.head},
                   .accumulate = key > 0});
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float normalizer = 1.0f / scratch.sum[r];
    T* to = y.rows(first + r).data;
    const float* from = scratch.out + r * s.head;
#pragma omp simd
    for (int64_t d = 0; d < s.head; ++d) to[d] = rounded<T>(from[d] * normalizer);
    logsumexp[first + r] = scratch.maximum[r] + std::log(scratch.sum[r]);
  }
}

/// Of a tile of scores and of dy v^T: the probabilities, and the gradient of the scores.
template <class T>
void score_gradients(const Sizes& s, int64_t first, int64_t rows, int64_t key, int64_t keys,
                     const float* logsumexp, const float* delta, const Scratch<T>& scratch) {
  for (int64_t r = 0; r < rows; ++r) {
    float* scores = scratch.scores + r * keys;
    const int64_t end = mask_row(scores, std::min(keys, first + r + 1 - key), keys);
    const float* gradient = scratch.gradient + r * keys;
    T* p = scratch.probabilities + r * keys;
    T* ds = scratch.dscores + r * keys;
    const float normalizer = logsumexp[first + r];
    const float offset = delta[r];
#pragma omp simd
    for (int64_t i = 0; i < end; ++i) {
      const float probability = exp_f32(multiply_add(scores[i], s.scale, -normalizer));
      p[i] = rounded<T>(probability);
      ds[i] = rounded<T>(probability * (gradient[i] - offset) * s.scale);
    }
    for (int64_t i = end; i < keys; ++i) {
      p[i] = T(0.0f);
      ds[i] = T(0.0f);
    }
  }
}

/// delta (rows) = sum over d of dy * y.
template <class T>
void row_products(float* delta, Slice<const T> dy, Slice<const T> y, int64_t rows,
                  int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) {
    const T* a = dy.rows(r).data;
    const T* b = y.rows(r).data;
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t d = 0; d < columns; ++d) sum += float(a[d]) * float(b[d]);
    delta[r] = sum;
  }
}

template <class T>
void convert_rows(Slice<T> to, Slice<float> from, int64_t rows, int64_t columns) {
  for (int64_t r = 0; r < rows; ++r) convert_row(to.rows(r).data, from.rows(r).data, columns);
}

template <class T>
struct HeadGradients {
  Slice<T> dq;             // the destination
  Slice<float> dk, dv;     // f32 sums (T, D)
  Slice<const T> dy, y;    // (T, D)
  const float* logsumexp;  // (T)
};

/// dq of rows [first, first + rows) of one head, and their contribution to dk and dv.
template <class T>
void backward_tile(const Sizes& s, const Head<T>& head, int64_t first, const HeadGradients<T>& g,
                   const Scratch<T>& scratch) {
  const int64_t rows = std::min(tile_rows, s.tokens - first);
  const int64_t end = first + rows;
  const bool accumulate = end < s.tokens;  // the last tile comes first and overwrites
  float* delta = scratch.sum;
  row_products(delta, g.dy.rows(first), g.y.rows(first), rows, s.head);
  for (int64_t key = 0; key < end; key += block_keys) {
    const int64_t keys = std::min(block_keys, end - key);
    const Slice<T> p{scratch.probabilities, keys};
    const Slice<T> ds{scratch.dscores, keys};
    const auto q = head.q.rows(first);
    const auto k = head.k.rows(key);
    const auto v = head.v.rows(key);
    const auto dy = g.dy.rows(first);
    const auto meet_keys = [&](Slice<const T> a, Slice<const T> b, float* to) {
      product<T>(s, {.m = rows, .n = keys, .k = s.head, .a = plain(a), .b = transposed(b),
                     .c = {to, keys}});
    };
    const auto add_to_keys = [&](Slice<T> a, Slice<const T> b, Slice<float> to) {
      product<T>(s, {.m = keys, .n = s.head, .k = rows, .a = transposed(a), .b = plain(b),
                     .c = {to.rows(key).data, to.stride}, .accumulate = accumulate});
    };
    meet_keys(q, k, scratch.scores);
    meet_keys(dy, v, scratch.gradient);
    score_gradients(s, first, rows, key, keys, g.logsumexp, delta, scratch);
    add_to_keys(p, dy, g.dv);
    add_to_keys(ds, q, g.dk);
    product<T>(s, {.m = rows, .n = s.head, .k = keys, .a = plain(ds), .b = plain(k),
                   .c = {scratch.out, s.head}, .accumulate = key > 0});
  }
  convert_rows(g.dq.rows(first), {scratch.out, s.head}, rows, s.head);
}

}  // namespace

void attention_forward(const Context& context, const Tensor& y, const Tensor& logsumexp,
                       const Tensor& qkv, int64_t heads) {
  const Sizes s(qkv, heads);
  if (s.empty()) return;
  const int64_t tasks = s.batch * heads * s.tiles;
  const int threads = team_size(tasks, tile_rows * s.tokens * s.head);
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    const int64_t floats = Scratch<T>::floats(s, false);
    const Tensor workspace = context.workspace({threads, floats});
    const auto forward = [&](int64_t task) {
      const int64_t pair = task / s.tiles;  // sequence and head
      const int64_t sequence = pair / heads;
      const int64_t h = pair % heads;
      const Scratch<T> scratch(workspace.data<float>() + omp_get_thread_num() * floats, s, false);
      const Slice<T> out{y.data<T>() + sequence * s.tokens * s.channels + h * s.head, s.channels};
      forward_tile(s, head_of(qkv.data<T>(), s, sequence, h), task % s.tiles * tile_rows, out,
                   logsumexp.data<float>() + pair * s.tokens, scratch);
    };
    run_tasks(tasks, threads, forward);
  });
}

void attention_backward(const Context& context, const Tensor& dqkv, const Tensor& dy,
                        const Tensor& y, const Tensor& logsumexp, const Tensor& qkv,
                        int64_t heads) {
  const Sizes s(qkv, heads);
  if (s.empty()) return;
  const int64_t tasks = s.batch * heads;
  const int threads = team_size(tasks, s.tokens * s.tokens * s.head);
  visit_float(qkv.dtype(), "causal_attention", [&]<class T>() {
    const int64_t tile_floats = Scratch<T>::floats(s, true);
    const int64_t sums = s.tiles * tile_rows * s.head;  // dk and dv, in whole cache lines
    const int64_t floats = tile_floats + 2 * sums;
    const Tensor workspace = context.workspace({threads, floats});
    const auto backward = [&](int64_t task) {
      const int64_t sequence = task / heads;
      const int64_t h = task % heads;
      float* memory = workspace.data<float>() + omp_get_thread_num() * floats;
      const Scratch<T> scratch(memory, s, true);
      T* to = dqkv.data<T>() + sequence * s.tokens * s.packed() + h * s.head;
      const int64_t offset = sequence * s.tokens * s.channels + h * s.head;
      const HeadGradients<T> g{{to, s.packed()},
                               {memory + tile_floats, s.head},
                               {memory + tile_floats + sums, s.head},
                               {dy.data<T>() + offset, s.channels},
                               {y.data<T>() + offset, s.channels},
                               logsumexp.data<float>() + task * s.tokens};
      const Head<T> head = head_of<T>(qkv.data<T>(), s, sequence, h);
      for (int64_t tile = s.tiles - 1; tile >= 0; --tile) {
        backward_tile(s, head, tile * tile_rows, g, scratch);
      }
      convert_rows(Slice<T>{to + s.channels, s.packed()}, g.dk, s.tokens, s.head);
      convert_rows(Slice<T>{to + 2 * s.channels, s.packed()}, g.dv, s.tokens, s.head);
    };
    run_tasks(tasks, threads, backward);
  });
}

}  // namespace tessera::cpu
