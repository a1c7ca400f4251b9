// embedding: tokens i32 (B, T), table (V, C), positions (P, C) with P >= T
//   -> y (B, T, C):  y[b, t] = table[tokens[b, t]] + positions[t].
// Without positions, tokens may have up to four dimensions.
//
// In the table's gradient, the row of a token is the sum of the rows of dy for the token's
// occurrences in `tokens`, added in the order of the occurrences.
#include "core/autograd.h"
#include "core/ops.h"
#include "core/ops/embedding.h"
#include "core/ops/embedding_rows.h"
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
  if (!tokens.device().is_cpu()) return;  // on a GPU the kernel checks, so the host does not wait
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
  const InUse in_use({read_whole(table), &positions});
  const auto [rows, indices] = rows_of(table, tokens);
  check_one_device({&rows, &indices, &positions});
  const int64_t positions_per_row = positions.defined() ? tokens.size(1) : 1;
  Shape shape = tokens.shape();
  shape.push_back(table.size(1));
  Tensor y = Tensor::empty(shape, rows.dtype(), rows.device());
  kernels::embedding_forward(current_context(y.device()), y, indices, rows, positions,
                             positions_per_row);
  return record("embedding", y, {table, positions},
                [indices = saved(indices), positions_per_row](const Tensor& dy,
                                                            InputGradients& grads) {
                  const Context context = current_context(dy.device());
                  if (grads.wanted(0)) {
                    const auto [dtable, accumulate] = grads.accumulating_destination(0);
                    kernels::embedding_backward(context, "embedding", dtable, dy, indices,
                                                accumulate);
                  }
                  if (grads.wanted(1)) {
                    kernels::position_backward(context, grads.destination(1), dy,
                                               positions_per_row);
                  }
                });
}

}  // namespace tessera::ops

namespace tessera::cpu {

void embedding_forward(const Context&, const Tensor& y, const Tensor& tokens, const Tensor& table,
                       const Tensor& positions, int64_t positions_per_row) {
  const int64_t channels = table.size(1);
  const int32_t* token = tokens.data<int32_t>();
  visit_float(y.dtype(), "embedding", [&]<class T>() {
    T* const to = y.data<T>();
    const T* const from = table.data<T>();
    const T* const places = positions.defined() ? positions.data<T>() : nullptr;
    parallel_ranges(tokens.elements(), channels, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        T* out = to + r * channels;
        const T* row = from + token[r] * channels;
        if (places == nullptr) {
          for (int64_t c = 0; c < channels; ++c) out[c] = row[c];
          continue;
        }
        const T* position = places + r % positions_per_row * channels;
#pragma omp simd
        for (int64_t c = 0; c < channels; ++c) {
          out[c] = rounded<T>(float(row[c]) + float(position[c]));
        }
      }
    });
  });
}

void embedding_backward(const Context& context, const char* operation, const Tensor& dtable,
                        const Tensor& dy, const Tensor& tokens, bool accumulate) {
  const int64_t vocabulary = dtable.size(0);
  const int64_t work = tokens.elements() + vocabulary;  // rows to read and rows to write
  TESSERA_CHECK(work < INT32_MAX,
                "{}: {} positions and rows of the table together, expected less than {}", operation,
                work, INT32_MAX);
  const auto for_each = [token = tokens.values<int32_t>()](const auto& body) {
    for (size_t i = 0; i < token.size(); ++i) body(token[i], static_cast<int64_t>(i));
  };
  const TokenOrder sorted = sort_by_token(context, tokens.elements(), vocabulary, for_each);
  sum_by_token(operation, dtable, dy, sorted, accumulate, [](int64_t) { return 1.0f; });
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
        const auto row_of = [=](int64_t b) { return WeightedRow{b * tokens_per_row + t}; };
        sum_rows(dy.data<T>(), channels, {rows, rows}, row_of, write);
      }
    });
  });
}

}  // namespace tessera::cpu
