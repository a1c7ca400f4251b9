// The gradients of row_products on the CPU. The places (b, k) of the products are sorted by the row
// that a place looks up. So a row's sum stays in registers or in the L1 cache until it is complete.
#include "core/ops/row_products_rows.h"

namespace tessera::cpu {

namespace {

/// One place (b, k) in the gradient of a row. It adds `weight`, the gradient of product (b, k),
/// times row `other` of the other side's table.
struct Term {
  int32_t other;
  float weight;
};

/// Terms sorted by row. Row v of a table has terms[i] for start[v] <= i < start[v + 1].
struct Terms {
  Tensor start_memory;  // i32 (V + 1)
  Tensor memory;        // holds `terms`; one term is as large as two f32
  int32_t* start;
  Term* terms;

  Terms(const Context& context, int64_t rows, int64_t places)
      : start_memory(context.workspace({rows + 1}, DType::i32)),
        memory(context.workspace({2 * places})),
        start(start_memory.data<int32_t>()),
        terms(static_cast<Term*>(memory.raw())) {}
};

/// Writes term_at(place) of all places (b, k) to `to`, sorted by own_at(place), the row that the
/// place looks up. The places of a row stay in order.
template <class OwnAt, class TermAt>
void sort_terms(const Terms& to, int64_t rows, int64_t places, const OwnAt& own_at,
                const TermAt& term_at) {
  int32_t* const start = to.start;
  std::fill_n(start, rows + 1, 0);
  for (int64_t place = 0; place < places; ++place) ++start[own_at(place) + 1];
  for (int64_t v = 0; v < rows; ++v) start[v + 1] += start[v];
  for (int64_t place = 0; place < places; ++place) {
    to.terms[start[own_at(place)]++] = term_at(place);
  }
  // The last loop moved start[v] to the end of row v's terms, where the terms of row v + 1 begin.
  std::move_backward(start, start + rows, start + rows + 1);
  start[0] = 0;
}

template <class T>
Terms terms_of(const Context& context, RowProductSide side, const T* dy,
               const RowProductInputs& in) {
  const Rows<T> left(in.left);
  const Rows<T> right(in.right);
  const int64_t per_row = in.per_row();
  const int64_t places = in.rows() * per_row;
  const bool of_left = side == RowProductSide::left;
  const int64_t rows = (of_left ? in.left : in.right).table.size(0);
  Terms terms(context, rows, places);
  const auto left_at = [&](int64_t place) {
    return static_cast<int32_t>(left.index(per_row == 1 ? place : place / per_row));
  };
  const auto right_at = [&](int64_t place) { return right.indices[place]; };
  const auto weight = [&](int64_t place) { return dy == nullptr ? 0.0f : float(dy[place]); };
  if (of_left) {
    sort_terms(terms, rows, places, left_at, [&](int64_t place) {
      return Term{right_at(place), weight(place)};
    });
  } else {
    sort_terms(terms, rows, places, right_at, [&](int64_t place) {
      return Term{left_at(place), weight(place)};
    });
  }
  return terms;
}

/// to[c] = value_at(c), or to[c] += value_at(c) if `accumulate`.
template <class T, class ValueAt>
void put_all(T* to, int64_t count, bool accumulate, const ValueAt& value_at) {
  if (accumulate) {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = rounded<T>(float(to[c]) + value_at(c));
  } else {
#pragma omp simd
    for (int64_t c = 0; c < count; ++c) to[c] = rounded<T>(value_at(c));
  }
}

}  // namespace

void row_products_backward(const Context& context, const GradientTarget& table,
                           const GradientTarget& bias, RowProductSide side,
                           const RowProductGradients& gradients, const RowProductInputs& in) {
  const bool of_left = side == RowProductSide::left;
  const ops::Lookup& own = of_left ? in.left : in.right;
  const int64_t rows = own.table.size(0);
  const int64_t channels = in.channels();
  const int64_t places = in.rows() * in.per_row();
  // The K places (b, 0), ..., (b, K - 1) share one lookup in the left table. In the right table,
  // each place has its own lookup.
  const int64_t places_per_lookup = of_left ? in.per_row() : 1;
  const float dsquares = gradients.squares.defined() ? *gradients.squares.data<float>() : 0.0f;
  visit_float(own.table.dtype(), "row_products", [&]<class T>() {
    const T* const dy = data_or_null<T>(gradients.products);
    const Terms sorted = terms_of<T>(context, side, dy, in);
    const Rows<T> from(own);
    const T* const others = (of_left ? in.right : in.left).table.template data<T>();
    T* const dtable = data_or_null<T>(table.gradient);
    T* const dbias = data_or_null<T>(bias.gradient);
    const auto add_bias = [&](int64_t v, const Term* terms, int64_t count, float factor) {
      float sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += terms[i].weight;
      // If factor is 0, the bias must not be multiplied by it: 0 times an infinite bias is NaN.
      if (factor != 0) sum = multiply_add(factor, from.bias_of(v), sum);
      put_all(dbias + v, 1, bias.accumulate, [=](int64_t) { return sum; });
    };
    const auto add_row = [&](int64_t v, const Term* terms, int64_t count, float factor) {
      const T* row = from.row(v);
      T* out = dtable + v * channels;
      const bool accumulate = table.accumulate;
      const auto write = [=](const float* sum, int64_t first, int64_t columns) {
        const T* const own_row = row + first;
        // If factor is 0, the row must not be multiplied by it: 0 times an infinite value is NaN.
        if (factor == 0) {
          put_all(out + first, columns, accumulate, [=](int64_t c) { return sum[c]; });
        } else {
          put_all(out + first, columns, accumulate,
                  [=](int64_t c) { return multiply_add(factor, float(own_row[c]), sum[c]); });
        }
      };
      const auto row_of = [=](int64_t i) { return WeightedRow{terms[i].other, terms[i].weight}; };
      const RowCount added{dy == nullptr ? 0 : count, sorted.terms + places - terms};
      sum_rows(others, channels, added, row_of, write);
    };
    parallel_segments(sorted.start, rows, channels, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const Term* const terms = sorted.terms + sorted.start[v];
        const int64_t count = sorted.start[v + 1] - sorted.start[v];
        const float factor =
            dsquares == 0 ? 0 : 2 * dsquares * static_cast<float>(count / places_per_lookup);
        const auto adds = [&](const GradientTarget& to) { return count > 0 || !to.accumulate; };
        if (dtable != nullptr && adds(table)) add_row(v, terms, count, factor);
        if (dbias != nullptr && adds(bias)) add_bias(v, terms, count, factor);
      }
    });
  });
}

}  // namespace tessera::cpu
