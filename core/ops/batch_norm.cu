// batch_norm on CUDA. A block processes a chunk of rows and up to 32 n channels. Thread (x, y) has
// the same n neighbouring channels in rows y, y + Y, ..., where Y is blockDim.y. The mean, scale
// and sums of these channels therefore stay in registers.
//
// The number of chunks depends only on the dtype and on the numbers of rows and channels. Sums over
// rows are computed in three steps:
//  - A thread adds up rows y, y + Y, ... of a chunk.
//  - The sums of a block's threads are merged in pairs.
//  - A second kernel merges the chunks.
// Means and variances are merged by Chan's formula, which avoids cancellation.
#include <algorithm>
#include <limits>

#include "core/ops/batch_norm.h"
#include "core/ops/rows.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
/// Number of rows whose loads a thread has in flight at the same time.
constexpr int batch = 4;
/// Limit on the number of blocks in a grid: four for each of an H200's 132 multiprocessors. A grid
/// exceeds the limit only if the channels of one chunk need more blocks than this.
constexpr int64_t max_blocks = 528;

/// Divides rows and channels among blocks and threads.
struct RowGrid {
  RowGrid(int64_t elements, int64_t c, int n) : rows(elements / c), channels(c) {
    while (lanes < warp_size && lanes * n < c) lanes *= 2;
    across = blocks_for(c, lanes * n);
    const int64_t most = std::max<int64_t>(1, max_blocks / across);
    const int64_t turns =
        std::max<int64_t>(1, (rows + most * row_threads() - 1) / (most * row_threads()));
    chunk_rows = turns * row_threads();
    chunks = blocks_for(rows, chunk_rows);
  }

  int row_threads() const { return threads / lanes; }
  LaunchShape launch_shape() const {
    return {dim3(across, chunks), dim3(static_cast<unsigned>(lanes), row_threads())};
  }

  /// Returns the thread's first channel. If the thread has no channel, returns `channels` or more.
  template <int n>
  __device__ int64_t first_channel() const {
    return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) * n;
  }
  __device__ int64_t rows_of(int64_t chunk) const {
    return std::min(chunk_rows, rows - chunk * chunk_rows);
  }
  /// Calls body(first, rows) for this thread's rows, at most `batch` rows at a time. The `rows`
  /// rows of a call begin at elements first, first + stride(), ...
  template <class Body>
  __device__ void each_batch(const Body& body) const {
    const int64_t first = int64_t{blockIdx.y} * chunk_rows;
    const int64_t last = first + rows_of(blockIdx.y);
    for (int64_t r = first + threadIdx.y; r < last; r += int64_t{batch} * blockDim.y) {
      const int64_t left = (last - r + blockDim.y - 1) / blockDim.y;
      body(r * channels, static_cast<int>(std::min<int64_t>(batch, left)));
    }
  }
  __device__ int64_t stride() const { return blockDim.y * channels; }

  int64_t rows;
  int64_t channels;
  int lanes = 1;
  unsigned across;  // number of blocks that share the channels of a row
  unsigned chunks;
  int64_t chunk_rows;
};

/// For each of n channels, the mean over `count` rows, and the sum of the squared distances from
/// this mean.
template <int n>
struct Moments {
  float count;
  Floats<n> mean;
  Floats<n> squares;

  __device__ void merge(const Moments& other) {
    if (other.count == 0) return;
    const float before = count;
    count += other.count;
    const float share = other.count / count;
    unrolled<n>([&](int i) {
      const float delta = other.mean.value[i] - mean.value[i];
      mean.value[i] = fmaf(delta, share, mean.value[i]);
      // delta * delta could be infinite while `before` is 0, and their product would be NaN.
      squares.value[i] =
          fmaf(delta * (share * before), delta, squares.value[i] + other.squares.value[i]);
    });
  }
};

/// For each of n channels, the sum of g and the sum of g * (x - mean) over rows. g is dy, but 0
/// where a relu has made y 0 (batch_norm.h).
template <int n>
struct Sums {
  Floats<n> g;
  Floats<n> gd;

  __device__ void merge(const Sums& other) {
    unrolled<n>([&](int i) {
      g.value[i] += other.g.value[i];
      gd.value[i] += other.gd.value[i];
    });
  }
};

/// The threads of a block that have the same threadIdx.x merge their partial results in pairs.
/// Among these threads, the thread with threadIdx.y = 0 gets the result. blockDim.y must be a power
/// of two. `parts` is shared memory for one partial result per thread.
template <class Part>
__device__ inline void merge_rows(Part& own, Part* parts) {
  const unsigned at = threadIdx.y * blockDim.x + threadIdx.x;
  for (unsigned half = blockDim.y / 2; half > 0; half /= 2) {
    if (threadIdx.y >= half && threadIdx.y < 2 * half) parts[at] = own;
    __syncthreads();
    if (threadIdx.y < half) own.merge(parts[at + half * blockDim.x]);
  }
}

template <class T>
struct Forward {
  T* y;
  const T* x;
  const T* residual;  // or null
  const float* mean;
  const float* rstd;
  const T* weight;
  const T* bias;
  float lowest;
};

template <class T>
struct BackwardSums {
  float* partial;  // (chunks, 2, C): Sums::g and Sums::gd of each chunk
  const T* dy;
  const T* y;  // null if there is no relu; g is then dy
  const T* x;
  const float* mean;
};

template <class T>
struct Backward {
  T* dx;         // or null
  T* dresidual;  // or null
  const T* dy;
  const T* y;  // null if there is no relu; g is then dy
  const T* x;
  const float* mean;
  const float* rstd;
  const T* weight;
  const float* sum_g;
  const float* sum_gn;
  float factor;
};

/// Writes the mean of each chunk, and the sum of the squared distances from this mean, to partial
/// (chunks, 2, C).
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    statistics_kernel(float* partial, const T* x, RowGrid grid) {
  __shared__ Moments<n> parts[threads];
  const int64_t channel = grid.first_channel<n>();
  Moments<n> own = {};
  if (channel < grid.channels) {
    grid.each_batch([&](int64_t first, int rows) {
      Elements<T, n> loaded[batch] = {};
      unrolled<batch>([&](int k) {
        const T* from = x + first + k * grid.stride() + channel;
        if (k < rows) loaded[k] = load_elements<aligned, n>(from);
      });
      Moments<n> more = {.count = static_cast<float>(rows), .mean = {}, .squares = {}};
      const float share = 1.0f / more.count;
      unrolled<n>([&](int i) {
        float total = 0;
        unrolled<batch>([&](int k) { total += k < rows ? float(loaded[k].value[i]) : 0.0f; });
        const float mean = total * share;
        more.mean.value[i] = mean;
        unrolled<batch>([&](int k) {
          const float distance = k < rows ? float(loaded[k].value[i]) - mean : 0.0f;
          more.squares.value[i] = fmaf(distance, distance, more.squares.value[i]);
        });
      });
      own.merge(more);
    });
  }
  merge_rows(own, parts);
  if (threadIdx.y > 0 || channel >= grid.channels) return;
  float* to = partial + int64_t{blockIdx.y} * 2 * grid.channels + channel;
  unrolled<n>([&](int i) {
    to[i] = own.mean.value[i];
    to[grid.channels + i] = own.squares.value[i];
  });
}

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    backward_sums_kernel(BackwardSums<T> args, RowGrid grid) {
  __shared__ Sums<n> parts[threads];
  const int64_t channel = grid.first_channel<n>();
  Sums<n> own = {};
  if (channel < grid.channels) {
    Floats<n> mean;
    unrolled<n>([&](int i) { mean.value[i] = args.mean[channel + i]; });
    grid.each_batch([&](int64_t first, int rows) {
      Elements<T, n> dy[batch], y[batch], x[batch];
      unrolled<batch>([&](int k) {
        const int64_t at = first + k * grid.stride() + channel;
        if (k >= rows) return;
        dy[k] = load_elements<aligned, n>(args.dy + at);
        x[k] = load_elements<aligned, n>(args.x + at);
        if (args.y != nullptr) y[k] = load_elements<aligned, n>(args.y + at);
      });
      unrolled<batch>([&](int k) {
        if (k >= rows) return;
        unrolled<n>([&](int i) {
          const bool counts = args.y == nullptr || float(y[k].value[i]) > 0;
          const float g = counts ? float(dy[k].value[i]) : 0.0f;
          own.g.value[i] += g;
          own.gd.value[i] =
              fmaf(g, float(x[k].value[i]) - mean.value[i], own.gd.value[i]);
        });
      });
    });
  }
  merge_rows(own, parts);
  if (threadIdx.y > 0 || channel >= grid.channels) return;
  float* to = args.partial + int64_t{blockIdx.y} * 2 * grid.channels + channel;
  unrolled<n>([&](int i) {
    to[i] = own.g.value[i];
    to[grid.channels + i] = own.gd.value[i];
  });
}

/// Number of threads along y in the kernels that call merge_chunks. There, thread y merges chunks
/// y, y + 32, ... of one channel. Then the results of the threads are merged in pairs. Threads with
/// y = 0 get the result.
constexpr int finish_rows = 32;

template <class Part, class Read>
__device__ inline Part merge_chunks(unsigned chunks, bool inside, const Read& read) {
  __shared__ Part parts[finish_rows * warp_size];
  Part own = {};
  if (inside) {
    for (unsigned chunk = threadIdx.y; chunk < chunks; chunk += finish_rows) own.merge(read(chunk));
  }
  merge_rows(own, parts);
  return own;
}

__global__ void __launch_bounds__(finish_rows* warp_size)
    statistics_finish_kernel(float* mean, float* variance, const float* partial, RowGrid grid) {
  const int64_t channel = grid.first_channel<1>();
  const bool inside = channel < grid.channels;
  const auto own = merge_chunks<Moments<1>>(grid.chunks, inside, [&](unsigned chunk) {
    const float* from = partial + int64_t{chunk} * 2 * grid.channels + channel;
    return Moments<1>{static_cast<float>(grid.rows_of(chunk)), {from[0]}, {from[grid.channels]}};
  });
  if (threadIdx.y > 0 || !inside) return;
  mean[channel] = own.mean.value[0];
  variance[channel] = own.squares.value[0] / static_cast<float>(grid.rows);
}

__global__ void __launch_bounds__(finish_rows* warp_size)
    sums_finish_kernel(float* sum_g, float* sum_gn, const float* partial, const float* rstd,
                       RowGrid grid) {
  const int64_t channel = grid.first_channel<1>();
  const bool inside = channel < grid.channels;
  const auto own = merge_chunks<Sums<1>>(grid.chunks, inside, [&](unsigned chunk) {
    const float* from = partial + int64_t{chunk} * 2 * grid.channels + channel;
    return Sums<1>{{from[0]}, {from[grid.channels]}};
  });
  if (threadIdx.y > 0 || !inside) return;
  sum_g[channel] = own.g.value[0];
  sum_gn[channel] = own.gd.value[0] * rstd[channel];
}

LaunchShape finish_shape(int64_t channels) {
  return {blocks_for(channels, warp_size), dim3(warp_size, finish_rows)};
}

template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) forward_kernel(Forward<T> args, RowGrid grid) {
  const int64_t channel = grid.first_channel<n>();
  if (channel >= grid.channels) return;
  Floats<n> mean, scale, shift;
  unrolled<n>([&](int i) {
    mean.value[i] = args.mean[channel + i];
    scale.value[i] = args.rstd[channel + i] * float(args.weight[channel + i]);
    shift.value[i] = float(args.bias[channel + i]);
  });
  grid.each_batch([&](int64_t first, int rows) {
    Elements<T, n> x[batch], residual[batch];
    unrolled<batch>([&](int k) {
      const int64_t at = first + k * grid.stride() + channel;
      if (k >= rows) return;
      x[k] = load_elements<aligned, n>(args.x + at);
      if (args.residual != nullptr) residual[k] = load_elements<aligned, n>(args.residual + at);
    });
    unrolled<batch>([&](int k) {
      if (k >= rows) return;
      Floats<n> y;
      unrolled<n>([&](int i) {
        const float distance = float(x[k].value[i]) - mean.value[i];
        float value = fmaf(distance, scale.value[i], shift.value[i]);
        if (args.residual != nullptr) value += float(residual[k].value[i]);
        y.value[i] = value < args.lowest ? args.lowest : value;
      });
      store_elements<aligned>(args.y + first + k * grid.stride() + channel, y);
    });
  });
}

/// dx = by_g * g + by_x * (x - mean) + shift, dresidual = g. A thread first computes the factors of
/// its channels, from the formula in batch_norm.h.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) backward_kernel(Backward<T> args, RowGrid grid) {
  const int64_t channel = grid.first_channel<n>();
  if (channel >= grid.channels) return;
  Floats<n> mean, by_g, by_x = {}, shift = {};
  unrolled<n>([&](int i) {
    const int64_t c = channel + i;
    mean.value[i] = args.mean[c];
    by_g.value[i] = args.rstd[c] * float(args.weight[c]);
    if (args.factor == 0) return;
    by_x.value[i] = -by_g.value[i] * args.rstd[c] * (args.sum_gn[c] * args.factor);
    shift.value[i] = -by_g.value[i] * (args.sum_g[c] * args.factor);
  });
  grid.each_batch([&](int64_t first, int rows) {
    Elements<T, n> dy[batch], y[batch], x[batch];
    unrolled<batch>([&](int k) {
      const int64_t at = first + k * grid.stride() + channel;
      if (k >= rows) return;
      dy[k] = load_elements<aligned, n>(args.dy + at);
      if (args.dx != nullptr) x[k] = load_elements<aligned, n>(args.x + at);
      if (args.y != nullptr) y[k] = load_elements<aligned, n>(args.y + at);
    });
    unrolled<batch>([&](int k) {
      if (k >= rows) return;
      const int64_t at = first + k * grid.stride() + channel;
      Floats<n> g, dx;
      unrolled<n>([&](int i) {
        const bool counts = args.y == nullptr || float(y[k].value[i]) > 0;
        g.value[i] = counts ? float(dy[k].value[i]) : 0.0f;
      });
      if (args.dresidual != nullptr) store_elements<aligned>(args.dresidual + at, g);
      if (args.dx == nullptr) return;
      unrolled<n>([&](int i) {
        const float distance = float(x[k].value[i]) - mean.value[i];
        const float others = fmaf(by_x.value[i], distance, shift.value[i]);
        dx.value[i] = fmaf(by_g.value[i], g.value[i], others);
      });
      store_elements<aligned>(args.dx + at, dx);
    });
  });
}

struct Rstd {
  float epsilon;
  __device__ float operator()(float variance) const { return 1.0f / sqrtf(variance + epsilon); }
};

template <class T>
T* data_or_null(const Tensor& tensor) {
  return tensor.defined() ? tensor.data<T>() : nullptr;
}

}  // namespace

/// Workspace: 8 bytes * chunks (struct RowGrid) * C.
void batch_norm_statistics(const Context& context, const Tensor& mean, const Tensor& variance,
                           const Tensor& x) {
  constexpr const char* name = "batch_norm_statistics";
  const int64_t channels = mean.elements();
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const RowGrid grid(x.elements(), channels, n);
          const Tensor partial = context.workspace({grid.chunks, 2, channels});
          launch(context, name, grid.launch_shape(), statistics_kernel<T, n, aligned>,
                 partial.data<float>(), x.data<T>(), grid);
          launch(context, name, finish_shape(channels), statistics_finish_kernel,
                 mean.data<float>(), variance.data<float>(), partial.data<float>(), grid);
        },
        x.data<T>());
  });
}

void batch_norm_rstd(const Context& context, const Tensor& rstd, const Tensor& variance,
                     float epsilon) {
  map(context, "batch_norm_rstd", Rstd{epsilon}, rstd.elements(), rstd.data<float>(),
      variance.data<float>());
}

void batch_norm_forward(const Context& context, const Tensor& y, const Tensor& x,
                        const Tensor& residual, const Tensor& mean, const Tensor& rstd,
                        const Tensor& weight, const Tensor& bias, bool relu) {
  if (x.elements() == 0) return;
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    const Forward<T> args{.y = y.data<T>(),
                          .x = x.data<T>(),
                          .residual = data_or_null<T>(residual),
                          .mean = mean.data<float>(),
                          .rstd = rstd.data<float>(),
                          .weight = weight.data<T>(),
                          .bias = bias.data<T>(),
                          .lowest = relu ? 0.0f : -std::numeric_limits<float>::infinity()};
    visit_access<neighbours<T>>(
        mean.elements(),
        [&]<int n, bool aligned>() {
          const RowGrid grid(x.elements(), mean.elements(), n);
          launch(context, "batch_norm_forward", grid.launch_shape(), forward_kernel<T, n, aligned>,
                 args, grid);
        },
        args.y, args.x, args.residual);
  });
}

/// Workspace: 8 bytes * chunks * C.
void batch_norm_backward_sums(const Context& context, const Tensor& sum_g, const Tensor& sum_gn,
                              const Tensor& dy, const Tensor& y, const Tensor& x,
                              const Tensor& mean, const Tensor& rstd) {
  constexpr const char* name = "batch_norm_backward_sums";
  const int64_t channels = mean.elements();
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    const T* result = data_or_null<T>(y);
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const RowGrid grid(x.elements(), channels, n);
          const Tensor partial = context.workspace({grid.chunks, 2, channels});
          if (grid.chunks > 0) {
            launch(context, name, grid.launch_shape(), backward_sums_kernel<T, n, aligned>,
                   BackwardSums<T>{.partial = partial.data<float>(),
                                   .dy = dy.data<T>(),
                                   .y = result,
                                   .x = x.data<T>(),
                                   .mean = mean.data<float>()},
                   grid);
          }
          launch(context, name, finish_shape(channels), sums_finish_kernel, sum_g.data<float>(),
                 sum_gn.data<float>(), partial.data<float>(), rstd.data<float>(), grid);
        },
        dy.data<T>(), result, x.data<T>());
  });
}

void batch_norm_backward(const Context& context, const Tensor& dx, const Tensor& dresidual,
                         const Tensor& dy, const Tensor& y, const Tensor& x, const Tensor& mean,
                         const Tensor& rstd, const Tensor& weight, const Tensor& sum_g,
                         const Tensor& sum_gn, float factor) {
  if (x.elements() == 0) return;
  visit_float(x.dtype(), "batch_norm", [&]<class T>() {
    const Backward<T> args{.dx = data_or_null<T>(dx),
                           .dresidual = data_or_null<T>(dresidual),
                           .dy = dy.data<T>(),
                           .y = data_or_null<T>(y),
                           .x = x.data<T>(),
                           .mean = mean.data<float>(),
                           .rstd = rstd.data<float>(),
                           .weight = weight.data<T>(),
                           .sum_g = data_or_null<float>(sum_g),
                           .sum_gn = data_or_null<float>(sum_gn),
                           .factor = factor};
    visit_access<neighbours<T>>(
        mean.elements(),
        [&]<int n, bool aligned>() {
          const RowGrid grid(x.elements(), mean.elements(), n);
          launch(context, "batch_norm_backward", grid.launch_shape(),
                 backward_kernel<T, n, aligned>, args, grid);
        },
        args.dx, args.dresidual, args.dy, args.y, args.x);
  });
}

}  // namespace tessera::cuda
