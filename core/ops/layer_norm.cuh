// The forward of layer_norm and residual_layer_norm on CUDA. rms_norm uses visit_norm_rows too.
//
// A warp processes a row of up to 4 KiB (2,048 elements of 16 bits), without a barrier. A block
// processes a longer row. A row of at most 16 KiB whose 16-byte accesses are aligned is read from
// memory once and stays in registers. Other rows are read again at each use. The bits of a row's
// result do not depend on other rows.
#pragma once

#include "core/ops/rows.cuh"

namespace tessera::cuda {

inline constexpr int norm_threads = 256;
/// A warp processes a row of at most this many 16-byte accesses per lane. With more accesses, the
/// row and the sums for dweight and dbias would not fit into registers in the backward.
inline constexpr int norm_warp_turns = 8;

template <class T>
bool norm_row_is_a_warps(int64_t channels) {
  return channels <= int64_t{warp_size} * norm_warp_turns * neighbours<T>;
}

/// Calls body.operator()<turns>() with the first of the given ascending numbers that is at least
/// `needed`, or with the last number if all are smaller.
template <int first, int... rest, class Body>
void visit_turns(int64_t needed, Body&& body) {
  if constexpr (sizeof...(rest) == 0) {
    body.template operator()<first>();
  } else if (needed <= first) {
    body.template operator()<first>();
  } else {
    visit_turns<rest...>(needed, body);
  }
}

/// Calls visit_turns for a row that a warp processes. The row's length must be a multiple of
/// neighbours<T>, the number of elements of one access.
template <class T, class Body>
void visit_warp_turns(int64_t channels, Body&& body) {
  visit_turns<1, 2, 3, 4, 5, 6, 7, norm_warp_turns>(
      (channels / neighbours<T> + warp_size - 1) / warp_size, body);
}

/// Calls body.operator()<threads, n, aligned, turns>() for rows of `channels` elements. A row is
/// shared by `threads` threads. Each thread makes at most `turns` accesses of n elements and keeps
/// these elements in registers. If `turns` is 0, the number of accesses is not limited, and nothing
/// is kept. n, `aligned` and `data` are as in visit_access (rows.cuh).
template <class T, class Body, class... Data>
void visit_norm_rows(int64_t channels, Body&& body, const Data*... data) {
  constexpr int wide = neighbours<T>;
  visit_access<wide>(
      channels,
      [&]<int n, bool aligned>() {
        if (norm_row_is_a_warps<T>(channels)) {
          if constexpr (n == wide && aligned) {
            visit_warp_turns<T>(channels, [&]<int turns>() {
              body.template operator()<warp_size, n, aligned, turns>();
            });
          } else {
            body.template operator()<warp_size, n, aligned, 0>();
          }
        } else if constexpr (n == wide && aligned) {
          constexpr int turns = 4;
          if (channels <= norm_threads * turns * wide) {
            body.template operator()<norm_threads, n, aligned, turns>();
          } else {
            body.template operator()<norm_threads, n, aligned, 0>();
          }
        } else {
          body.template operator()<norm_threads, n, aligned, 0>();
        }
      },
      data...);
}

template <class T>
struct NormForward {
  T* y;
  T* sum;  // x + residual; null without a residual
  float* mean;
  float* rstd;
  const T* x;
  const T* residual;
  const T* weight;
  const T* bias;
  int64_t rows;
  int64_t channels;
  float epsilon;
};

template <bool residual, class T, int threads, int n, bool aligned, int turns>
__global__ void __launch_bounds__(norm_threads) norm_forward_kernel(NormForward<T> args) {
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t row = int64_t{blockIdx.x} * (norm_threads / threads) + thread / threads;
  if (row >= args.rows) return;
  const RowWalk<threads, n> walk{thread % threads, args.channels};
  const int64_t start = row * args.channels;
  RowPart<T, threads, n, aligned, turns> x;
  x.load(walk, args.x + start);
  if constexpr (residual) x.add(walk, args.residual + start, args.sum + start);
  float total = 0;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> values = x.get(turn, at);
    unrolled<n>([&](int i) { total += values.value[i]; });
  });
  const auto channels = static_cast<float>(args.channels);
  const float mean = row_sum<threads>(total) / channels;
  float squares = 0;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> values = x.get(turn, at);
    unrolled<n>([&](int i) {
      const float centred = values.value[i] - mean;
      squares = fmaf(centred, centred, squares);
    });
  });
  const float rstd = 1.0f / sqrtf(row_sum<threads>(squares) / channels + args.epsilon);
  walk.template each<turns>([&](int turn, int64_t at) {
    Floats<n> values = x.get(turn, at);
    const Floats<n> weight = widened(load_elements<aligned, n>(args.weight + at));
    const Floats<n> bias = widened(load_elements<aligned, n>(args.bias + at));
    unrolled<n>([&](int i) {
      const float normalized = (values.value[i] - mean) * rstd;
      values.value[i] = fmaf(normalized, weight.value[i], bias.value[i]);
    });
    store_elements<aligned>(args.y + start + at, values);
  });
  if (walk.thread == 0) {
    args.mean[row] = mean;
    args.rstd[row] = rstd;
  }
}

template <bool residual, class T>
void launch_norm_forward(const Context& context, const char* name, const NormForward<T>& args) {
  if (args.rows == 0 || args.channels == 0) return;
  visit_norm_rows<T>(
      args.channels,
      [&]<int threads, int n, bool aligned, int turns>() {
        launch(context, name, {blocks_for(args.rows, norm_threads / threads), norm_threads},
               norm_forward_kernel<residual, T, threads, n, aligned, turns>, args);
      },
      args.y, args.sum, args.x, args.residual, args.weight, args.bias);
}

}  // namespace tessera::cuda
