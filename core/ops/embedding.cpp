// embedding: tokens i32 (B, T), table (V, C), positions (P, C) with P >= T
//   -> y (B, T, C):  y[b, t] = table[tokens[b, t]] + positions[t].   R = B T.
// Without positions tokens have any shape of R elements.
// The gradient of the table is, for each token, the sum of its rows of dy in order of position.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/embedding.h"
#include "core/trace.h"

namespace tessera::ops {

namespace {
void check_shapes(const Tensor& tokens, const Tensor& table, const Tensor& positions) {
  const bool any_rank = !positions.defined() && tokens.rank() < Shape::max_rank;
  TESSERA_CHECK((any_rank || tokens.rank() == 2) && tokens.dtype() == DType::i32,
                "embedding: tokens are {} {}, expected i32 {}", dtype_name(tokens.dtype()),
                tokens.shape(), positions.defined() ? "(B, T)" : "of at most four dimensions");
  TESSERA_CHECK(table.rank() == 2, "embedding: table has shape {}, expected (V, C)", table.shape());
  if (!positions.defined()) return;
  TESSERA_CHECK(positions.rank() == 2 && positions.size(1) == table.size(1) &&
                    positions.size(0) >= tokens.size(1),
                "embedding: positions have shape {}, expected at least [{}, {}]", positions.shape(),
                tokens.size(1), table.size(1));
  TESSERA_CHECK(positions.dtype() == table.dtype(),
                "embedding: positions have dtype {}, expected {}", dtype_name(positions.dtype()),
                dtype_name(table.dtype()));
}

void check_range(const Tensor& tokens, int64_t vocabulary) {
  if (!tokens.device().is_cpu()) return;  // a device's kernel checks, without making the host wait
  const auto values = tokens.values<int32_t>();
  for (size_t i = 0; i < values.size(); ++i) {
    TESSERA_CHECK(0 <= values[i] && values[i] < vocabulary,
                  "embedding: token {} at position {} is outside the vocabulary of {}", values[i],
                  i, vocabulary);
  }
}
}  // namespace

Tensor embedding(const Tensor& tokens, const Tensor& table, const Tensor& positions) {
  check_shapes(tokens, table, positions);
  check_range(tokens, table.size(0));
  const trace::Scope scope("embedding");
  const InUse in_use({&table, &positions});
  const int64_t positions_per_row = positions.defined() ? tokens.size(1) : 1;
  Shape shape = tokens.shape();
  shape.push_back(table.size(1));
  Tensor y = Tensor::empty(shape, table.dtype(), table.device());
  kernels::embedding_forward(current_context(y.device()), y, tokens, table, positions,
                             positions_per_row);
  return record("embedding", y, {table, positions},
                [tokens = saved(tokens), positions_per_row](const Tensor& dy,
                                                            InputGradients& grads) {
                  const Context context = current_context(dy.device());
                  if (grads.wanted(0)) {
                    const auto [dtable, accumulate] = grads.accumulating_destination(0);
                    kernels::embedding_backward(context, dtable, dy, tokens, accumulate);
                  }
                  if (grads.wanted(1)) {
                    kernels::position_backward(context, grads.destination(1), dy,
                                               positions_per_row);
                  }
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

namespace {

/// Columns that are summed at once, in fp32, in a buffer that stays in the nearest cache.
constexpr int64_t tile = 256;

/// Adds the rows row_of(0), row_of(1), ... of dy up, in this order and in fp32, and calls
/// write(sum, first, count) with the sums of columns [first, first + count).
template <class T, class RowOf, class Write>
void sum_rows(const T* dy, int64_t channels, int64_t rows, RowOf&& row_of, Write&& write) {
  float sum[tile];
  for (int64_t first = 0; first < channels; first += tile) {
    const int64_t count = std::min(tile, channels - first);
    std::fill_n(sum, count, 0.0f);
    for (int64_t i = 0; i < rows; ++i) {
      const T* row = dy + row_of(i) * channels + first;
#pragma omp simd
      for (int64_t c = 0; c < count; ++c) sum[c] += float(row[c]);
    }
    write(sum, first, count);
  }
}

/// The positions of each token, in order: token v has order[start[v]] up to order[start[v + 1]].
struct TokenOrder {
  Tensor start;  // i32 (V + 1)
  Tensor order;  // i32 (R)
};

/// A counting sort of positions by token.
TokenOrder sort_by_token(const Context& context, const Tensor& tokens, int64_t vocabulary) {
  const TokenOrder result{context.workspace({vocabulary + 1}, DType::i32),
                          context.workspace({tokens.elements()}, DType::i32)};
  const auto token = tokens.values<int32_t>();
  int32_t* start = result.start.data<int32_t>();
  int32_t* order = result.order.data<int32_t>();
  std::fill_n(start, vocabulary + 1, 0);
  for (const int32_t v : token) ++start[v + 1];
  for (int64_t v = 0; v < vocabulary; ++v) start[v + 1] += start[v];
  // Writing moves start[v] to the end of token v, which is the start of token v + 1.
  for (size_t i = 0; i < token.size(); ++i) order[start[token[i]]++] = static_cast<int32_t>(i);
  for (int64_t v = vocabulary; v > 0; --v) start[v] = start[v - 1];
  start[0] = 0;
  return result;
}

}  // namespace

void embedding_forward(const Context&, const Tensor& y, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions, int64_t positions_per_row) {
  const int64_t channels = table.size(1);
  const int32_t* token = tokens.data<int32_t>();
  visit_float(y.dtype(), "embedding", [&]<class T>() {
    parallel_ranges(tokens.elements(), channels, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = y.data<T>() + r * channels;
        const T* row = table.data<T>() + token[r] * channels;
        if (!positions.defined()) {
          std::copy_n(row, channels, out);
          continue;
        }
        const T* position = positions.data<T>() + r % positions_per_row * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
          out[c] = rounded<T>(float(row[c]) + float(position[c]));
        }
      }
    });
  });
}

void embedding_backward(const Context& context, const Tensor& dtable, const Tensor& dy,
                        const Tensor& tokens, bool accumulate) {
  const int64_t vocabulary = dtable.size(0);
  const int64_t channels = dtable.size(1);
  const int64_t work = tokens.elements() + vocabulary;  // rows to read and rows to write
  TESSERA_CHECK(work < INT32_MAX, "embedding: {} tokens and words together, at most {}", work,
                INT32_MAX);
  const TokenOrder sorted = sort_by_token(context, tokens, vocabulary);
  const int32_t* start = sorted.start.data<int32_t>();
  // The first token such that those before it are `done` rows of work.
  const auto token_after = [&](int64_t done) {
    int64_t low = 0;
    int64_t high = vocabulary;
    while (low < high) {
      const int64_t middle = (low + high) / 2;
      if (start[middle] + middle < done) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  };
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    parallel_ranges(work, channels, [&](int64_t begin, int64_t end) {
      const int64_t last = token_after(end);
      for (int64_t v = token_after(begin); v < last; ++v) {
        const int32_t count = start[v + 1] - start[v];
        if (count == 0 && accumulate) continue;
        const int32_t* order = sorted.order.data<int32_t>() + start[v];
        T* out = dtable.data<T>() + v * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
          T* to = out + first;
          for (int64_t c = 0; c < columns; ++c) {
            to[c] = rounded<T>(accumulate ? float(to[c]) + sum[c] : sum[c]);
          }
        };
        sum_rows(dy.data<T>(), channels, count, [=](int64_t i) { return order[i]; }, write);
      }
    });
  });
}

void position_backward(const Context&, const Tensor& dpositions, const Tensor& dy,
                       int64_t tokens_per_row) {
  const int64_t channels = dpositions.size(1);
  const int64_t batch = dy.size(0);
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    parallel_ranges(dpositions.size(0), batch * channels, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        T* out = dpositions.data<T>() + t * channels;
        const auto write = [=](const float* sum, int64_t first, int64_t columns) {
          for (int64_t c = 0; c < columns; ++c) out[first + c] = rounded<T>(sum[c]);
        };
        const int64_t rows = t < tokens_per_row ? batch : 0;
        sum_rows(dy.data<T>(), channels, rows, [=](int64_t b) { return b * tokens_per_row + t; },
                 write);
      }
    });
  });
}

}  // namespace tessera::cpu
