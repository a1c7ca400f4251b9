// The CPU loops of batch_norm over rows: the grouping of rows, and sums over rows.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/context.h"
#include "core/cpu/vector_math.h"

namespace tessera::cpu {

/// The grouping of rows. A row with few channels would not fill SIMD registers, so `fold` rows are
/// treated as one wide row of fold * channels columns. Fewer than `fold` rows are left over. Sums
/// are computed in chunks of wide rows. The grouping depends only on the numbers of rows and
/// channels, so the bits of a sum do not depend on the number of threads.
struct WideRows {
  WideRows(int64_t elements, int64_t c)
      : channels(c),
        fold((256 + c - 1) / c),
        width(fold * c),
        count(elements / width),
        left_over(elements % width / c),
        chunk_rows(std::max(block, (count + max_chunks - 1) / max_chunks)),
        chunks((count + chunk_rows - 1) / chunk_rows) {}

  static constexpr int64_t block = 32;
  static constexpr int64_t max_chunks = 32;
  int64_t channels;
  int64_t fold;
  int64_t width;
  int64_t count;       // wide rows
  int64_t left_over;   // rows
  int64_t chunk_rows;  // wide rows in a chunk
  int64_t chunks;

  /// Returns the number of wide rows in chunks [chunk, chunk + some). `chunk` must be less than
  /// `chunks`, but chunk + some may exceed `chunks`.
  int64_t rows_of(int64_t chunk, int64_t some) const {
    return std::min(count, (chunk + some) * chunk_rows) - chunk * chunk_rows;
  }

  /// Calls body(first, columns) in parallel, for elements [first, first + columns) of x: once for
  /// each wide row, and once for all rows that are left over.
  template <class Body>
  void parallel_rows(int64_t cost, Body&& body) const {
    parallel_ranges(count + (left_over > 0), cost * width, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        body(r * width, r < count ? width : left_over * channels);
      }
    });
  }

  /// Calls body(chunk, first) in parallel for each chunk, which starts at wide row `first`.
  template <class Body>
  void parallel_chunks(int64_t cost, Body&& body) const {
    parallel_ranges(chunks, cost * chunk_rows * width, [&](int64_t begin, int64_t end) {
      for (int64_t chunk = begin; chunk < end; ++chunk) body(chunk, chunk * chunk_rows);
    });
  }
};

/// Sets each element of `values` (width) to of(c), where c is the channel of the element's column.
template <class Of>
void fill_columns(float* values, const WideRows& wide, Of&& of) {
  for (int64_t first = 0; first < wide.width; first += wide.channels) {
    for (int64_t c = 0; c < wide.channels; ++c) values[first + c] = of(c);
  }
}

/// sum (columns) += value(row, column) over `rows` rows. Four rows are added at a time, so that
/// each element of `sum` is read and written once for four values.
template <class Value>
void add_rows(float* sum, int64_t rows, int64_t columns, const Value& value) {
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      sum[i] += (value(r, i) + value(r + 1, i)) + (value(r + 2, i) + value(r + 3, i));
    }
  }
  for (; r < rows; ++r) {
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) sum[i] += value(r, i);
  }
}

/// For each column, the mean over `rows` rows, and the sum of the squared distances from this mean.
struct Moments {
  float* mean;
  float* squares;
  int64_t rows = 0;

  void clear(int64_t columns) {
    std::fill_n(mean, columns, 0.0f);
    std::fill_n(squares, columns, 0.0f);
    rows = 0;
  }

  /// Merges the moments of other rows into these moments (Chan, Golub and LeVeque, 1979).
  void merge(const Moments& other, int64_t columns) {
    // The formula below would multiply the square of a mean by 0, and the square may be infinite.
    if (rows == 0) {
      rows = other.rows;
      std::copy_n(other.mean, columns, mean);
      std::copy_n(other.squares, columns, squares);
      return;
    }
    const auto before = static_cast<float>(rows);
    rows += other.rows;
    const float share = static_cast<float>(other.rows) / static_cast<float>(rows);
#pragma omp simd
    for (int64_t i = 0; i < columns; ++i) {
      const float delta = other.mean[i] - mean[i];
      mean[i] = multiply_add(delta, share, mean[i]);
      squares[i] = multiply_add(delta * delta, share * before, squares[i] + other.squares[i]);
    }
  }

  /// Merges `more` rows of x, in blocks of WideRows::block rows. A block fits into a core's cache
  /// and is read twice: first for its mean, then for the squared distances from the mean. So the
  /// variance does not suffer from cancellation. To compute the mean, the differences from the
  /// block's first row are summed, because a sum of large values would be less exact.
  template <class T>
  void merge_rows(const T* x, int64_t more, int64_t columns, Moments scratch) {
    for (int64_t first = 0; first < more; first += WideRows::block) {
      const T* from = x + first * columns;
      float* centre = scratch.mean;
      scratch.clear(columns);
      scratch.rows = std::min(WideRows::block, more - first);
      add_rows(centre, scratch.rows, columns, [=](int64_t r, int64_t i) {
        return float(from[r * columns + i]) - float(from[i]);
      });
      const float share = 1.0f / static_cast<float>(scratch.rows);
#pragma omp simd
      for (int64_t i = 0; i < columns; ++i) {
        centre[i] = multiply_add(centre[i], share, float(from[i]));
      }
      add_rows(scratch.squares, scratch.rows, columns, [=](int64_t r, int64_t i) {
        const float distance = float(from[r * columns + i]) - centre[i];
        return distance * distance;
      });
      merge(scratch, columns);
    }
  }
};

/// Merges `count` parts in pairs, then the results in pairs, and so on, until part 0 is the result
/// of all parts. merge(into, from, some) merges part `from` into part `into`; each of the two is
/// already the result of up to `some` parts. Pairwise sums have smaller rounding errors than one
/// long sum.
template <class Merge>
void merge_pairs(int64_t count, Merge&& merge) {
  for (int64_t some = 1; some < count; some *= 2) {
    for (int64_t i = 0; i + some < count; i += 2 * some) merge(i, i + some, some);
  }
}

}  // namespace tessera::cpu
