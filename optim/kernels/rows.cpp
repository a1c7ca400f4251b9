// copy_rows, fold_rows and touched_square_sums on the CPU.
#include "optim/kernels/rows.h"

#include <algorithm>

#include "core/half.h"
#include "core/ops/embedding_rows.h"
#include "optim/kernels/square_sums_lanes.h"

namespace tessera::cpu {

namespace {

/// The addresses of a RowList's rows.
template <class T>
class RowsAt {
 public:
  explicit RowsAt(const RowList& list)
      : base_(list.matrix.data<T>()),
        index_(list.index.defined() ? list.index.data<int32_t>() : nullptr),
        width_(list.width()),
        first_(list.first) {}
  int64_t index(int64_t i) const { return index_ == nullptr ? i : index_[i]; }
  T* operator()(int64_t i) const { return base_ + (index(i) - first_) * width_; }

 private:
  T* base_;
  const int32_t* index_;
  int64_t width_;
  int64_t first_;
};

}  // namespace

void copy_rows(const Context&, const RowList& to, const RowList& from, int64_t count) {
  const int64_t width = to.width();
  visit_float(to.matrix.dtype(), "copy_rows", [&]<class T>() {
    visit_float(from.matrix.dtype(), "copy_rows", [&]<class S>() {
      const RowsAt<T> target(to);
      const RowsAt<S> source(from);
      parallel_ranges(count, width, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          if (i + rows_ahead < end) {
            prefetch_row(source(i + rows_ahead), width);
            prefetch_row(target(i + rows_ahead), width);
          }
          T* const out = target(i);
          const S* const in = source(i);
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) out[c] = rounded<T>(float(in[c]));
        }
      });
    });
  });
}

void fold_rows(const Context&, const RowList& sums, int64_t fresh, const RowList& values,
               int64_t count) {
  const int64_t width = sums.width();
  const RowsAt<float> target(sums);
  visit_float(values.matrix.dtype(), "fold_rows", [&]<class T>() {
    const RowsAt<T> source(values);
    parallel_ranges(count, width, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        float* const sum = target(i);
        const T* const add = source(i);
        if (target.index(i) >= fresh) {
          // The value is added to 0.0, not copied. So -0.0 becomes +0.0, as in a zeroed
          // accumulator.
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) sum[c] = 0.0f + float(add[c]);
        } else {
#pragma omp simd
          for (int64_t c = 0; c < width; ++c) sum[c] += float(add[c]);
        }
      }
    });
  });
}

void touched_square_sums(const Context&, std::span<double> squares, const TouchedBlocks& touched) {
  const int64_t width = touched.sums.size(1);
  const float* const sums = touched.sums.data<float>();
  const int32_t* const slots = touched.slots.data<int32_t>();
  const int32_t* const rows = touched.rows.data<int32_t>();
  const int64_t* const blocks = touched.blocks.data<int64_t>();
  const int32_t* const first = touched.first.data<int32_t>();
  parallel_ranges(touched.block_count, square_sum_block, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const int64_t block_begin = blocks[j] * square_sum_block;
      const int64_t block_end = block_begin + square_sum_block;
      double lanes[square_sum_lanes] = {};
      for (int64_t i = first[j]; i < touched.row_count; ++i) {
        const int64_t row_begin = rows[i] * width;
        if (row_begin >= block_end) break;
        const int64_t from = std::max(row_begin, block_begin);
        const int64_t to = std::min(row_begin + width, block_end);
        const float* const row = sums + slots[i] * width - row_begin;
        add_squares(lanes, row + from, from - block_begin, to - from);
      }
      squares[static_cast<size_t>(j)] = add_lanes(lanes);
    }
  });
}

}  // namespace tessera::cpu
