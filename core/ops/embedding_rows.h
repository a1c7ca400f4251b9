// Shared by embedding, embedding_bag and row_products on the CPU: sums of rows, the sort of
// positions by token, and the gradient of the table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "core/context.h"
#include "core/cpu/vector_math.h"
#include "core/half.h"

namespace tessera::cpu {

/// The index of a row of a matrix, and the weight that multiplies the row.
struct WeightedRow {
  int64_t index;
  float weight = 1.0f;
};

/// Row counts for sum_rows, which adds up row_of(i) for 0 <= i < added. The rows row_of(i) for
/// added <= i < known belong to the next sums, and sum_rows only prefetches the first few of them.
/// row_of must accept every i < known.
struct RowCount {
  int64_t added;
  int64_t known;
};

/// A row is prefetched this many rows before it is used. Rows are scattered over their matrix, so
/// the processor cannot predict the next row.
constexpr int64_t rows_ahead = 8;

template <class T>
void prefetch_row(const T* row, int64_t columns) {
  constexpr int64_t line = 64 / static_cast<int64_t>(sizeof(T));
  for (int64_t c = 0; c < columns; c += line) __builtin_prefetch(row + c);
}

/// Adds the rows row_of(0), row_of(1), ... to `sum`, in this order: sum[c] += weight * row[c] for
/// c < count. `fixed` is `count` as a compile-time constant, or 0 if `count` is known only at run
/// time.
template <int64_t fixed, class T, class RowOf>
void add_rows(float* sum, const T* from, int64_t channels, RowCount rows, const RowOf& row_of,
              int64_t count) {
  const int64_t columns = fixed > 0 ? fixed : count;
  for (int64_t i = 0; i < rows.added; ++i) {
    if (i + rows_ahead < rows.known) {
      prefetch_row(from + row_of(i + rows_ahead).index * channels, columns);
    }
    const WeightedRow next = row_of(i);
    const T* const row = from + next.index * channels;
    const float weight = next.weight;
#pragma omp simd
    for (int64_t c = 0; c < columns; ++c) sum[c] = multiply_add(weight, float(row[c]), sum[c]);
  }
}

/// Adds up the rows row_of(0), row_of(1), ... of `from`, each times its weight, in this order and
/// in f32. Calls write(sum, first, count) with the sums of columns [first, first + count).
template <class T, class RowOf, class Write>
void sum_rows(const T* from, int64_t channels, RowCount rows, RowOf&& row_of, Write&& write) {
  // Numbers of columns to sum at a time. 64 sums fit into registers, 256 sums into the L1 cache.
  constexpr int64_t narrow = 64;
  constexpr int64_t wide = 256;
  const int64_t tile = channels <= 2 * narrow ? narrow : wide;
  for (int64_t first = 0; first < channels; first += tile) {
    const int64_t count = std::min(tile, channels - first);
    if (count == narrow) {
      float sum[narrow] = {};
      add_rows<narrow>(sum, from + first, channels, rows, row_of, count);
      write(sum, first, count);
    } else {
      float sum[wide];
      std::fill_n(sum, count, 0.0f);
      add_rows<0>(sum, from + first, channels, rows, row_of, count);
      write(sum, first, count);
    }
  }
}

/// Splits `count` segments among the threads, into contiguous ranges with about equal work, and
/// calls body(begin, end) for each range. Segment i has start[i + 1] - start[i] rows to read and
/// one row to write, each at `cost_per_row`.
template <class Body>
void parallel_segments(const int32_t* start, int64_t count, int64_t cost_per_row, Body&& body) {
  // Returns the first segment with at least `done` rows of work before it.
  const auto segment_after = [&](int64_t done) {
    int64_t low = 0;
    int64_t high = count;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (start[middle] - start[0] + middle < done) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  const int64_t work = start[count] - start[0] + count;
  parallel_ranges(work, cost_per_row, [&](int64_t begin, int64_t end) {
    body(segment_after(begin), segment_after(end));
  });
}

/// Lists the rows of dy for each token. Token v has the rows order[i] for
/// start[v] <= i < start[v + 1], in ascending order.
struct TokenOrder {
  Tensor start;  // i32 (V + 1)
  Tensor order;  // i32; one row of dy for each position (see sort_by_token)
};

/// Sorts rows of dy by token, with a counting sort. A position is an index into the operation's
/// list of tokens, and belongs to one row of dy. `for_each(body)` must call body(token, row) for
/// every position, in ascending order; sort_by_token calls `for_each` twice. `positions` is an
/// upper bound on the number of positions, and determines the size of the workspace.
template <class ForEach>
TokenOrder sort_by_token(const Context& context, int64_t positions, int64_t vocabulary,
                         ForEach&& for_each) {
  const TokenOrder result{context.workspace({vocabulary + 1}, DType::i32),
                          context.workspace({positions}, DType::i32)};
  int32_t* start = result.start.data<int32_t>();
  int32_t* order = result.order.data<int32_t>();
  std::fill_n(start, vocabulary + 1, 0);
  for_each([=](int32_t token, int64_t) { ++start[token + 1]; });
  for (int64_t v = 0; v < vocabulary; ++v) start[v + 1] += start[v];
  // Writing a row advances start[token]. After all rows, start[v] is where the rows of token v + 1
  // begin, so the last loop moves each value to the next token.
  for_each([=](int32_t token, int64_t row) { order[start[token]++] = static_cast<int32_t>(row); });
  for (int64_t v = vocabulary; v > 0; --v) start[v] = start[v - 1];
  start[0] = 0;
  return result;
}

/// dtable[v] (V, C) is the f32 sum of weight_of(r) * dy[r] over the rows r of token v, in ascending
/// order. If `accumulate`, adds the sums to dtable. Errors name `operation`.
template <class WeightOf>
void sum_by_token(std::string_view operation, const Tensor& dtable, const Tensor& dy,
                  const TokenOrder& sorted, bool accumulate, WeightOf&& weight_of) {
  const int64_t channels = dtable.size(1);
  const int32_t* start = sorted.start.data<int32_t>();
  visit_float(dy.dtype(), operation, [&]<class T>() {
    T* const table = dtable.data<T>();
    const T* const rows = dy.data<T>();
    const int32_t* const all = sorted.order.data<int32_t>();
    parallel_segments(start, dtable.size(0), channels, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const int32_t count = start[v + 1] - start[v];
        if (count == 0 && accumulate) continue;  // token v does not occur
        const int32_t* order = all + start[v];
        T* out = table + v * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
          T* to = out + first;
          for (int64_t c = 0; c < columns; ++c) {
            to[c] = rounded<T>(accumulate ? float(to[c]) + sum[c] : sum[c]);
          }
        };
        const auto row_of = [&](int64_t i) { return WeightedRow{order[i], weight_of(order[i])}; };
        const RowCount terms{count, start[dtable.size(0)] - start[v]};
        sum_rows(rows, channels, terms, row_of, write);
      }
    });
  });
}

}  // namespace tessera::cpu
