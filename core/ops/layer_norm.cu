// layer_norm on CUDA. The forward is in layer_norm.cuh.
//
// The backward computes dx, and dweight and dbias, which are sums over rows. Rows are divided into
// chunks. The number of chunks depends only on the number of rows. Sums are computed in this order:
//   1. within a chunk, warp w sums rows w, w + 8, ...;
//   2. the warps' sums are added in order;
//   3. norm_finish_kernel adds up the chunks.
// norm_backward_kernel does steps 1 and 2 and computes dx, and reads each row once. If rows do not
// fit into a warp's registers, or are not aligned, norm_input_kernel computes dx and
// norm_columns_kernel does steps 1 and 2. The sums have the same bits either way.
#include "core/ops/layer_norm.cuh"
#include "core/ops/layer_norm.h"

#include <algorithm>

namespace tessera::cuda {

void layer_norm_forward(const Context& context, const Tensor& y, const Tensor& mean,
                        const Tensor& rstd, const Tensor& x, const Tensor& weight,
                        const Tensor& bias, float epsilon) {
  visit_float(x.dtype(), "layer_norm", [&]<class T>() {
    launch_norm_forward<false>(
        context, "layer_norm",
        NormForward<T>{.y = y.data<T>(),
                       .sum = nullptr,
                       .mean = mean.data<float>(),
                       .rstd = rstd.data<float>(),
                       .x = x.data<T>(),
                       .residual = nullptr,
                       .weight = weight.data<T>(),
                       .bias = bias.data<T>(),
                       .rows = mean.elements(),
                       .channels = weight.elements(),
                       .epsilon = epsilon});
  });
}

namespace {

constexpr int warps = norm_threads / warp_size;

// In norm_backward_kernel, a block sums a chunk. There are at most two chunks for each of an H200's
// 132 multiprocessors, so norm_finish_kernel reads little.
constexpr int64_t max_chunks = 264;

struct RowChunks {
  explicit RowChunks(int64_t rows)
      : chunk_rows(std::max<int64_t>(1, (rows + warps * max_chunks - 1) / (warps * max_chunks)) *
                   warps),
        count((rows + chunk_rows - 1) / chunk_rows) {}
  int64_t chunk_rows;
  int64_t count;
};

template <class T>
struct NormBackward {
  T* dx;           // or null
  float* partial;  // (chunks, 2, C): sums for dweight and dbias; null if neither is wanted
  const T* dy;
  const T* dsum;  // or null
  const T* x;
  const float* mean;
  const float* rstd;
  const T* weight;
  int64_t rows;
  int64_t channels;
  int64_t chunk_rows;
};

struct RowStatistics {
  float mean;
  float rstd;
  __device__ float normalized(float x) const { return (x - mean) * rstd; }
};

/// With n = (x - mean) * rstd and dn = dy * weight:
///   dx = rstd * (dn - mean(dn) - n * mean(dn * n)) + dsum
/// dsum (see layer_norm.h) is added only if `with_dsum`.
template <bool aligned, int turns, class T, int threads, int n, class Part, class Sum>
__device__ inline void input_gradient_row(const RowWalk<threads, n>& walk, T* dx, const Part& dy,
                                          const Sum& dsum, bool with_dsum, const Part& x,
                                          const T* weight, RowStatistics row) {
  float dn_total = 0;
  float dn_n_total = 0;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> grad = dy.get(turn, at), in = x.get(turn, at);
    const Floats<n> w = widened(load_elements<aligned, n>(weight + at));
    unrolled<n>([&](int i) {
      dn_total = fmaf(grad.value[i], w.value[i], dn_total);
      dn_n_total = fmaf(grad.value[i] * w.value[i], row.normalized(in.value[i]), dn_n_total);
    });
  });
  const auto channels = static_cast<float>(walk.columns);
  const float dn_mean = row_sum<threads>(dn_total) / channels;
  const float dn_n_mean = row_sum<threads>(dn_n_total) / channels;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> grad = dy.get(turn, at), in = x.get(turn, at);
    const Floats<n> w = widened(load_elements<aligned, n>(weight + at));
    Floats<n> result;
    unrolled<n>([&](int i) {
      const float centred = fmaf(grad.value[i], w.value[i], -dn_mean);
      result.value[i] = fmaf(-row.normalized(in.value[i]), dn_n_mean, centred);
    });
    if (with_dsum) {
      const Floats<n> more = dsum.get(turn, at);
      unrolled<n>([&](int i) { result.value[i] = fmaf(row.rstd, result.value[i], more.value[i]); });
    } else {
      unrolled<n>([&](int i) { result.value[i] *= row.rstd; });
    }
    store_elements<aligned>(dx + at, result);
  });
}

/// Adds an element's part of the gradients. n is the normalized input, (x - mean) * rstd.
__device__ inline void add_parameter_gradients(float& dweight, float& dbias, float dy, float n) {
  dweight = fmaf(dy, n, dweight);
  dbias += dy;
}

/// Computes dx, and the sums for dweight and dbias, for a chunk of rows. A warp keeps a row of x
/// and dy in registers, so that each row is read once. A short row of dsum is kept in registers
/// too. A long row of dsum is read only when it is added, because no registers are left for it.
template <class T, int turns>
__global__ void __launch_bounds__(norm_threads) norm_backward_kernel(NormBackward<T> args) {
  constexpr int n = neighbours<T>;
  using Part = RowPart<T, warp_size, n, true, turns>;
  constexpr int held_turns = turns <= norm_warp_turns - 2 ? turns : 0;
  using Sum = RowPart<T, warp_size, n, true, held_turns>;
  constexpr int width = turns * warp_size * n;  // at least args.channels
  __shared__ float total[2][width];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const RowWalk<warp_size, n> walk{static_cast<int>(threadIdx.x) % warp_size, args.channels};
  Floats<n> dweight[turns] = {};
  Floats<n> dbias[turns] = {};
  const int64_t first = blockIdx.x * args.chunk_rows;
  const int64_t last = std::min(first + args.chunk_rows, args.rows);
  for (int64_t r = first + warp; r < last; r += warps) {
    const int64_t start = r * args.channels;
    Part x, dy;
    Sum dsum;
    x.load(walk, args.x + start);
    dy.load(walk, args.dy + start);
    if (args.dsum != nullptr) dsum.load(walk, args.dsum + start);
    const RowStatistics row{args.mean[r], args.rstd[r]};
    if (args.partial != nullptr) {
      walk.template each<turns>([&](int turn, int64_t at) {
        const Floats<n> grad = dy.get(turn, at), in = x.get(turn, at);
        unrolled<n>([&](int i) {
          add_parameter_gradients(dweight[turn].value[i], dbias[turn].value[i], grad.value[i],
                                  row.normalized(in.value[i]));
        });
      });
    }
    if (args.dx != nullptr) {
      input_gradient_row<true, turns>(walk, args.dx + start, dy, dsum, args.dsum != nullptr, x,
                                      args.weight, row);
    }
  }
  if (args.partial == nullptr) return;
  for (int w = 0; w < warps; ++w) {  // in order, so that the bits do not depend on timing
    if (w == warp) {
      walk.template each<turns>([&](int turn, int64_t at) {
        unrolled<n>([&](int i) {
          float& weight = total[0][at + i];
          float& bias = total[1][at + i];
          weight = w == 0 ? dweight[turn].value[i] : weight + dweight[turn].value[i];
          bias = w == 0 ? dbias[turn].value[i] : bias + dbias[turn].value[i];
        });
      });
    }
    __syncthreads();
  }
  float* partial = args.partial + blockIdx.x * 2 * args.channels;
  for (int64_t i = threadIdx.x; i < args.channels; i += norm_threads) {
    partial[i] = total[0][i];
    partial[args.channels + i] = total[1][i];
  }
}

/// Computes dx only, for rows of any length and alignment.
template <class T, int threads, int n, bool aligned>
__global__ void __launch_bounds__(norm_threads) norm_input_kernel(NormBackward<T> args) {
  using Part = RowPart<T, threads, n, aligned, 0>;
  const int thread = static_cast<int>(threadIdx.x);
  const int64_t r = int64_t{blockIdx.x} * (norm_threads / threads) + thread / threads;
  if (r >= args.rows) return;
  const RowWalk<threads, n> walk{thread % threads, args.channels};
  const int64_t start = r * args.channels;
  Part x, dy, dsum;
  x.load(walk, args.x + start);
  dy.load(walk, args.dy + start);
  if (args.dsum != nullptr) dsum.load(walk, args.dsum + start);
  input_gradient_row<aligned, 0>(walk, args.dx + start, dy, dsum, args.dsum != nullptr, x,
                                 args.weight, {args.mean[r], args.rstd[r]});
}

/// Computes the sums for dweight and dbias over a chunk of rows of any length. A block sums 32
/// columns. Warp w sums the same rows as in norm_backward_kernel, so that both kernels give the
/// same bits.
template <class T>
__global__ void __launch_bounds__(norm_threads) norm_columns_kernel(NormBackward<T> args) {
  __shared__ float sums[2][warps][warp_size];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t column = int64_t{blockIdx.x} * warp_size + lane;
  const int64_t first = blockIdx.y * args.chunk_rows;
  const int64_t last = std::min(first + args.chunk_rows, args.rows);
  float dweight = 0;
  float dbias = 0;
  if (column < args.channels) {
    for (int64_t r = first + warp; r < last; r += warps) {
      const RowStatistics row{args.mean[r], args.rstd[r]};
      const int64_t at = r * args.channels + column;
      add_parameter_gradients(dweight, dbias, float(args.dy[at]),
                              row.normalized(float(args.x[at])));
    }
  }
  sums[0][warp][lane] = dweight;
  sums[1][warp][lane] = dbias;
  __syncthreads();
  if (warp >= 2 || column >= args.channels) return;
  float total = sums[warp][0][lane];
  for (int w = 1; w < warps; ++w) total += sums[warp][w][lane];
  args.partial[(int64_t{blockIdx.y} * 2 + warp) * args.channels + column] = total;
}

constexpr int finish_warps = 32;  // in a block of norm_finish_kernel

/// Adds up the chunks. A chunk has the sums for dweight and dbias side by side, in 2 C columns. A
/// block sums 32 columns. Warp w adds chunks w, w + 32, .... Then the warps' sums are added in
/// order. If dweight or dbias is null, it is not written.
template <class T>
__global__ void __launch_bounds__(finish_warps* warp_size)
    norm_finish_kernel(T* dweight, T* dbias, const float* partial, int64_t chunks,
                       int64_t channels) {
  __shared__ float sums[finish_warps][warp_size];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t column = int64_t{blockIdx.x} * warp_size + lane;
  float sum = 0;
  if (column < 2 * channels) {
    for (int64_t chunk = warp; chunk < chunks; chunk += finish_warps) {
      sum += partial[chunk * 2 * channels + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= 2 * channels) return;
  float total = sums[0][lane];
  for (int w = 1; w < finish_warps; ++w) total += sums[w][lane];
  T* to = column < channels ? dweight : dbias;
  if (to != nullptr) to[column % channels] = rounded<T>(total);
}

template <class T>
void launch_norm_backward(const Context& context, const NormBackward<T>& args) {
  constexpr const char* name = "layer_norm_backward";
  const RowChunks chunks(args.rows);
  const auto by_input = [&]<int threads, int n, bool aligned>() {
    if (args.dx == nullptr) return;
    launch(context, name, {blocks_for(args.rows, norm_threads / threads), norm_threads},
           norm_input_kernel<T, threads, n, aligned>, args);
  };
  const auto by_column = [&] {
    if (args.partial == nullptr) return;
    launch(context, name,
           {dim3(blocks_for(args.channels, warp_size), blocks_for(chunks.count, 1)), norm_threads},
           norm_columns_kernel<T>, args);
  };
  constexpr int wide = neighbours<T>;
  visit_access<wide>(
      args.channels,
      [&]<int n, bool aligned>() {
        if (!norm_row_is_a_warps<T>(args.channels)) {
          by_input.template operator()<norm_threads, n, aligned>();
          by_column();
        } else if constexpr (n == wide && aligned) {
          visit_warp_turns<T>(args.channels, [&]<int turns>() {
            launch(context, name, {blocks_for(chunks.count, 1), norm_threads},
                   norm_backward_kernel<T, turns>, args);
          });
        } else {
          by_input.template operator()<warp_size, n, aligned>();
          by_column();
        }
      },
      args.dx, args.dy, args.dsum, args.x, args.weight);
}

}  // namespace

/// Workspace, if dweight or dbias is wanted: 8 bytes * chunks * C, where chunks = ceil(rows / k)
/// and k = 8 * ceil(rows / 2112) is the number of rows in a chunk.
void layer_norm_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                         const Tensor& dbias, const Tensor& dy, const Tensor& dsum, const Tensor& x,
                         const Tensor& mean, const Tensor& rstd, const Tensor& weight) {
  const int64_t rows = mean.elements();
  const int64_t channels = weight.elements();
  if (channels == 0) return;
  const bool parameters = dweight.defined() || dbias.defined();
  const RowChunks chunks(rows);
  const Tensor partial = parameters ? context.workspace({chunks.count, 2, channels}) : Tensor();
  visit_float(x.dtype(), "layer_norm", [&]<class T>() {
    const auto data = [](const Tensor& tensor) {
      return tensor.defined() ? tensor.data<T>() : nullptr;
    };
    if (rows > 0) {
      launch_norm_backward<T>(
          context, {.dx = data(dx),
                    .partial = parameters ? partial.data<float>() : nullptr,
                    .dy = dy.data<T>(),
                    .dsum = data(dsum),
                    .x = x.data<T>(),
                    .mean = mean.data<float>(),
                    .rstd = rstd.data<float>(),
                    .weight = weight.data<T>(),
                    .rows = rows,
                    .channels = channels,
                    .chunk_rows = chunks.chunk_rows});
    }
    if (!parameters) return;
    launch(context, "layer_norm_backward",
           {blocks_for(2 * channels, warp_size), finish_warps * warp_size}, norm_finish_kernel<T>,
           data(dweight), data(dbias), partial.data<float>(), chunks.count, channels);
  });
}

}  // namespace tessera::cuda
