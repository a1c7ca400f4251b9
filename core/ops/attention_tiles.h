// The loops of attention and causal_attention on the CPU. A thread processes a tile of query rows
// of one head, and loops over the keys block by block. The tiles (forward) or the heads of k and v
// (backward) are divided among a team of threads. In shapes, B is the batch, H heads and T the
// queries of a sequence.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include <omp.h>

#include "core/cpu/vector_math.h"
#include "core/ops/attention_scratch.h"

namespace tessera::cpu::attention {

inline constexpr float infinity = std::numeric_limits<float>::infinity();

template <class T>
void convert_row(T* to, const float* from, int64_t count) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) to[i] = rounded<T>(from[i]);
}

/// Rounds `rows` rows of `head` elements. The rows are contiguous in `from`.
template <class T>
void convert_rows(Slice<T> to, const float* from, int64_t rows, int64_t head) {
  for (int64_t r = 0; r < rows; ++r) convert_row(to.rows(r).data, from + r * head, head);
}

/// Applies the mask to row r of a block of scores: sets the masked scores before `end` to
/// -infinity, and returns `end`. All scores from `end` on are masked, and callers must skip them.
/// `end` is the number of visible scores, rounded up to a multiple of 16 (whole vectors), but at
/// most x.keys.
inline int64_t mask_row(const Sizes& s, float* scores, const Block& x, int64_t r) {
  // `seen` is zero or negative if this row sees no key of the block, but later rows of the tile do.
  // This can happen only if there are more keys than queries.
  const int64_t seen = s.visible(x.row + r) - x.key;
  const int64_t visible = std::max(int64_t{0}, std::min(x.keys, seen));
  const int64_t end = std::min(x.keys, (visible + 15) / 16 * 16);
  for (int64_t i = visible; i < end; ++i) scores[i] = -infinity;
  return end;
}

/// Updates the row's running `maximum` of scale * score and the row's running `sum` of
/// exponentials. Then replaces the scores before `end` by exp(scale * score - maximum), and the
/// scores from `end` on by zero. Returns the factor by which the results of earlier blocks must be
/// multiplied, because they were computed with an earlier maximum.
inline float softmax_row(float* scores, int64_t end, int64_t keys, float scale, float& maximum,
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

/// Adds a block's contribution to the running results of its tile: out, and each row's maximum and
/// sum of exponentials.
template <class T>
void forward_block(const Sizes& s, const Head<const T>& head, const Block& x,
                   const Scratch<T>& scratch) {
  scratch.multiply(scores_product(s, x, head.q.rows(x.row), head.k.rows(x.key), scratch.scores));
  for (int64_t r = 0; r < x.rows; ++r) {
    float* scores = scratch.scores + r * x.keys;
    const int64_t end = mask_row(s, scores, x, r);
    const float correction =
        softmax_row(scores, end, x.keys, s.scale, scratch.maximum[r], scratch.sum[r]);
    if (!scratch.shared) convert_row(scratch.probabilities + r * x.keys, scores, x.keys);
    if (x.key == 0) continue;  // the product of the first block overwrites `out`
    for (int64_t d = 0; d < s.head; ++d) scratch.out[r * s.head + d] *= correction;
  }
  scratch.multiply(rows_product<T>(s, x, scratch.probabilities, head.v.rows(x.key), scratch.out));
}

/// Computes the rows of y and of logsumexp for one tile of a head. The tile starts at query `row`.
/// logsumexp has one element for each query of the head.
template <class T>
void forward_tile(const Sizes& s, const Head<const T>& head, int64_t row, Slice<T> y,
                  float* logsumexp, const Scratch<T>& scratch) {
  const int64_t rows = rows_of_tile(s, row);
  std::fill_n(scratch.maximum, rows, -infinity);
  std::fill_n(scratch.sum, rows, 0.0f);
  for_each_block(s, row, [&](const Block& x) { forward_block(s, head, x, scratch); });
  for (int64_t r = 0; r < rows; ++r) {
    const float normalizer = 1.0f / scratch.sum[r];
    T* to = y.rows(row + r).data;
    const float* from = scratch.out + r * s.head;
#pragma omp simd
    for (int64_t d = 0; d < s.head; ++d) to[d] = rounded<T>(from[d] * normalizer);
    logsumexp[row + r] = scratch.maximum[r] + std::log(scratch.sum[r]);
  }
}

/// Computes the probabilities of a block from its scores, and the gradient of the scores from
/// dy v^T (`gradient`).
template <class T>
void score_gradients(const Sizes& s, const Block& x, const float* logsumexp, const float* delta,
                     const Scratch<T>& scratch) {
  for (int64_t r = 0; r < x.rows; ++r) {
    float* scores = scratch.scores + r * x.keys;
    const int64_t end = mask_row(s, scores, x, r);
    const float* gradient = scratch.gradient + r * x.keys;
    T* p = scratch.probabilities + r * x.keys;
    T* ds = scratch.dscores + r * x.keys;
    const float normalizer = logsumexp[x.row + r];
    const float offset = delta[r];
#pragma omp simd
    for (int64_t i = 0; i < end; ++i) {
      const float probability = exp_f32(multiply_add(scores[i], s.scale, -normalizer));
      p[i] = rounded<T>(probability);
      ds[i] = rounded<T>(probability * (gradient[i] - offset) * s.scale);
    }
    for (int64_t i = end; i < x.keys; ++i) {
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
struct HeadGradients {
  Slice<T> dq;
  Slice<const T> dy, y;
  const float* logsumexp;  // one element for each query of the head
  bool first_head;         // true for the first of the heads of q that share a head of k and v
};

/// Computes dq for one tile of a head, and adds the tile's contribution to scratch.dk and
/// scratch.dv. The tile starts at query `row`. The last tile of the first head overwrites dk and dv
/// instead (see keys_product).
template <class T>
void backward_tile(const Sizes& s, const Head<const T>& head, int64_t row,
                   const HeadGradients<T>& g, const Scratch<T>& scratch) {
  const int64_t rows = rows_of_tile(s, row);
  const auto q = head.q.rows(row);
  const auto dy = g.dy.rows(row);
  float* delta = scratch.sum;
  row_products(delta, dy, g.y.rows(row), rows, s.head);
  for_each_block(s, row, [&](const Block& x) {
    const auto k = head.k.rows(x.key);
    const auto v = head.v.rows(x.key);
    const int64_t sums = x.key * s.head;
    scratch.multiply(scores_product(s, x, q, k, scratch.scores));
    scratch.multiply(scores_product(s, x, dy, v, scratch.gradient));
    score_gradients(s, x, g.logsumexp, delta, scratch);
    scratch.multiply(
        keys_product<T>(s, x, scratch.probabilities, dy, scratch.dv + sums, g.first_head));
    scratch.multiply(keys_product<T>(s, x, scratch.dscores, q, scratch.dk + sums, g.first_head));
    scratch.multiply(rows_product<T>(s, x, scratch.dscores, k, scratch.out));
  });
  convert_rows(g.dq.rows(row), scratch.out, rows, s.head);
}

/// Returns the number of threads for `tasks` tasks of `rows` rows of scores each, with about
/// `flops` operations per row. Returns 1 if all tasks together are too little work for a team.
inline int team_size(int64_t tasks, int64_t rows, int64_t flops) {
  const int64_t useful = worth_a_team(tasks * rows, flops) ? tasks : 1;
  return static_cast<int>(std::min<int64_t>(thread_count(), std::max<int64_t>(1, useful)));
}

/// Calls body(task, scratch) for each task, on a team of threads, each with a separate scratch.
/// After all tasks, throws the first exception that a task threw.
template <class T, class Body>
void run_tasks(const Context& context, const Sizes& s, bool backward, int64_t tasks, int threads,
               const Body& body) {
  const int64_t floats = Scratch<T>::floats(s, backward);
  const Tensor workspace = context.workspace({threads, floats});
  TeamErrors errors;
#pragma omp parallel for schedule(dynamic) num_threads(threads)
  for (int64_t task = 0; task < tasks; ++task) {
    errors.guard([&] {
      float* memory = workspace.data<float>() + omp_get_thread_num() * floats;
      body(task, Scratch<T>(memory, s, backward));
    });
  }
  errors.rethrow();
}

/// Computes y and logsumexp (B, H, T). A task is one tile of one head.
template <class T>
void forward(const Context& context, const Sizes& s, const Operands<const T>& x, T* y,
             float* logsumexp) {
  const int64_t tasks = s.batch * s.heads * s.tiles();
  const int threads = team_size(tasks, tile_rows, s.kv.tokens * s.head);
  run_tasks<T>(context, s, false, tasks, threads, [&](int64_t task, const Scratch<T>& scratch) {
    const int64_t pair = task / s.tiles();  // sequence and head
    const int64_t sequence = pair / s.heads;
    const int64_t h = pair % s.heads;
    forward_tile(s, head_of(x, s, sequence, h), task % s.tiles() * tile_rows,
                 slice_of(y, s.y, s, sequence, h), logsumexp + pair * s.q.tokens, scratch);
  });
}

template <class T>
struct Results {
  const T *dy, *y;
  const float* logsumexp;  // (B, H, T)
};

/// Computes the gradients `dx` of q, k and v. A task is one head of k and v of one sequence, with
/// all heads of q that use this head. So one thread computes all terms of the head's dk and dv.
template <class T>
void backward(const Context& context, const Sizes& s, const Operands<const T>& x,
              const Results<T>& results, const Operands<T>& dx) {
  const int64_t tasks = s.batch * s.kv_heads;
  const int threads = team_size(tasks, s.group() * s.q.tokens, s.kv.tokens * s.head);
  run_tasks<T>(context, s, true, tasks, threads, [&](int64_t task, const Scratch<T>& scratch) {
    const int64_t sequence = task / s.kv_heads;
    const int64_t first = task % s.kv_heads * s.group();
    for (int64_t h = first; h < first + s.group(); ++h) {
      const HeadGradients<T> g{
          head_of(dx, s, sequence, h).q, slice_of(results.dy, s.y, s, sequence, h),
          slice_of(results.y, s.y, s, sequence, h),
          results.logsumexp + (sequence * s.heads + h) * s.q.tokens, h == first};
      // Begins with the last tile, because the last tile of the first head overwrites the sums of
      // dk and dv (keys_product).
      for (int64_t tile = s.tiles() - 1; tile >= 0; --tile) {
        backward_tile(s, head_of(x, s, sequence, h), tile * tile_rows, g, scratch);
      }
    }
    const Head<T> shared = head_of(dx, s, sequence, first);
    convert_rows(shared.k, scratch.dk, s.kv.tokens, s.head);
    convert_rows(shared.v, scratch.dv, s.kv.tokens, s.head);
  });
}

}  // namespace tessera::cpu::attention
