// rms_norm on CUDA. A warp handles a short row, and a block handles a long row, as in
// layer_norm.cuh.
//
// The weight's gradient is summed in chunks of rows, as in layer_norm. The number of chunks depends
// only on the number of rows. Within a chunk, warp w sums rows w, w + 8, ..., then the warps' sums
// are added in order. A second kernel adds up the chunks' sums.
#include "core/ops/rms_norm.h"

#include <algorithm>

#include "core/ops/layer_norm.cuh"

namespace tessera::cuda {

namespace {

constexpr int warps = norm_threads / warp_size;
constexpr int64_t max_chunks = 264;  // the same number as in layer_norm.cu

struct RowChunks {
  explicit RowChunks(int64_t rows)
      : chunk_rows(std::max<int64_t>(1, (rows + warps * max_chunks - 1) / (warps * max_chunks)) *
                   warps),
        count((rows + chunk_rows - 1) / chunk_rows) {}
  int64_t chunk_rows;
  int64_t count;
};

template <class T>
struct RmsNorm {
  T* y;  // dx in the backward
  const T* dy;
  const T* x;
  float* rrms;
  const T* weight;
  int64_t rows;
  int64_t channels;
  float epsilon;
};

/// The index of this thread's row, and the thread's walk over that row.
template <int threads, int n>
struct ThreadRow {
  __device__ explicit ThreadRow(int64_t channels)
      : row(int64_t{blockIdx.x} * (norm_threads / threads) + threadIdx.x / threads),
        walk{static_cast<int>(threadIdx.x) % threads, channels} {}
  int64_t row;
  RowWalk<threads, n> walk;
};

template <class T, int threads, int n, bool aligned, int turns>
__global__ void __launch_bounds__(norm_threads) rms_norm_kernel(RmsNorm<T> args) {
  const ThreadRow<threads, n> here(args.channels);
  if (here.row >= args.rows) return;
  const auto& walk = here.walk;
  const int64_t start = here.row * args.channels;
  RowPart<T, threads, n, aligned, turns> x;
  x.load(walk, args.x + start);
  float squares = 0;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> values = x.get(turn, at);
    unrolled<n>([&](int i) { squares = fmaf(values.value[i], values.value[i], squares); });
  });
  const float mean = row_sum<threads>(squares) / static_cast<float>(args.channels);
  const float rrms = 1.0f / sqrtf(mean + args.epsilon);
  walk.template each<turns>([&](int turn, int64_t at) {
    Floats<n> values = x.get(turn, at);
    const Floats<n> weight = widened(load_elements<aligned, n>(args.weight + at));
    unrolled<n>([&](int i) { values.value[i] = values.value[i] * rrms * weight.value[i]; });
    store_elements<aligned>(args.y + start + at, values);
  });
  if (walk.thread == 0) args.rrms[here.row] = rrms;
}

/// With n = x * rrms and dn = dy * weight:  dx = rrms * (dn - n * mean(dn * n))
template <class T, int threads, int n, bool aligned, int turns>
__global__ void __launch_bounds__(norm_threads) rms_norm_input_kernel(RmsNorm<T> args) {
  const ThreadRow<threads, n> here(args.channels);
  if (here.row >= args.rows) return;
  const auto& walk = here.walk;
  const int64_t start = here.row * args.channels;
  const float rrms = args.rrms[here.row];
  RowPart<T, threads, n, aligned, turns> x, dy;
  x.load(walk, args.x + start);
  dy.load(walk, args.dy + start);
  float total = 0;
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> grad = dy.get(turn, at), in = x.get(turn, at);
    const Floats<n> weight = widened(load_elements<aligned, n>(args.weight + at));
    unrolled<n>([&](int i) {
      total = fmaf(grad.value[i] * weight.value[i], in.value[i] * rrms, total);
    });
  });
  const float mean = row_sum<threads>(total) / static_cast<float>(args.channels);
  walk.template each<turns>([&](int turn, int64_t at) {
    const Floats<n> grad = dy.get(turn, at), in = x.get(turn, at);
    const Floats<n> weight = widened(load_elements<aligned, n>(args.weight + at));
    Floats<n> result;
    unrolled<n>([&](int i) {
      const float dn = grad.value[i] * weight.value[i];
      result.value[i] = rrms * fmaf(-(in.value[i] * rrms), mean, dn);
    });
    store_elements<aligned>(args.y + start + at, result);
  });
}

/// Sums dweight over a chunk of rows. A block sums 32 columns.
template <class T>
__global__ void __launch_bounds__(norm_threads)
    rms_norm_columns_kernel(float* partial, RmsNorm<T> args, int64_t chunk_rows) {
  __shared__ float sums[warps][warp_size];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t column = int64_t{blockIdx.x} * warp_size + lane;
  const int64_t first = blockIdx.y * chunk_rows;
  const int64_t last = std::min(first + chunk_rows, args.rows);
  float dweight = 0;
  if (column < args.channels) {
    for (int64_t r = first + warp; r < last; r += warps) {
      const int64_t at = r * args.channels + column;
      dweight = fmaf(float(args.dy[at]), float(args.x[at]) * args.rrms[r], dweight);
    }
  }
  sums[warp][lane] = dweight;
  __syncthreads();
  if (warp > 0 || column >= args.channels) return;
  float total = sums[0][lane];
  for (int w = 1; w < warps; ++w) total += sums[w][lane];
  partial[int64_t{blockIdx.y} * args.channels + column] = total;
}

/// Number of warps in a block of rms_norm_finish_kernel. A block adds up the chunks' sums for 32
/// columns. Warp w adds chunks w, w + 32, ..., then the warps' sums are added in order.
constexpr int finish_warps = 32;

template <class T>
__global__ void __launch_bounds__(finish_warps* warp_size)
    rms_norm_finish_kernel(T* dweight, const float* partial, int64_t chunks, int64_t channels) {
  __shared__ float sums[finish_warps][warp_size];
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int64_t column = int64_t{blockIdx.x} * warp_size + lane;
  float sum = 0;
  if (column < channels) {
    for (int64_t chunk = warp; chunk < chunks; chunk += finish_warps) {
      sum += partial[chunk * channels + column];
    }
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= channels) return;
  float total = sums[0][lane];
  for (int w = 1; w < finish_warps; ++w) total += sums[w][lane];
  dweight[column] = rounded<T>(total);
}

template <class T>
void launch_weight_gradient(const Context& context, T* dweight, const RmsNorm<T>& args) {
  constexpr const char* name = "rms_norm_backward";
  const RowChunks chunks(args.rows);
  const Tensor partial = context.workspace({chunks.count, args.channels});
  const unsigned columns = blocks_for(args.channels, warp_size);
  if (chunks.count > 0) {
    launch(context, name, {dim3(columns, blocks_for(chunks.count, 1)), norm_threads},
           rms_norm_columns_kernel<T>, partial.data<float>(), args, chunks.chunk_rows);
  }
  launch(context, name, {columns, finish_warps * warp_size}, rms_norm_finish_kernel<T>, dweight,
         partial.data<float>(), chunks.count, args.channels);
}

}  // namespace

void rms_norm_forward(const Context& context, const Tensor& y, const Tensor& rrms, const Tensor& x,
                      const Tensor& weight, float epsilon) {
  if (y.elements() == 0) return;
  visit_float(x.dtype(), "rms_norm", [&]<class T>() {
    const RmsNorm<T> args{.y = y.data<T>(),
                          .dy = nullptr,
                          .x = x.data<T>(),
                          .rrms = rrms.data<float>(),
                          .weight = weight.data<T>(),
                          .rows = rrms.elements(),
                          .channels = weight.elements(),
                          .epsilon = epsilon};
    visit_norm_rows<T>(
        args.channels,
        [&]<int threads, int n, bool aligned, int turns>() {
          launch(context, "rms_norm", {blocks_for(args.rows, norm_threads / threads), norm_threads},
                 rms_norm_kernel<T, threads, n, aligned, turns>, args);
        },
        args.y, args.x, args.weight);
  });
}

/// Workspace, if dweight is wanted: 4 bytes * chunks * C, where chunks = ceil(rows / k) and
/// k = 8 * ceil(rows / 2112) is the number of rows in a chunk, as in layer_norm.
void rms_norm_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dy, const Tensor& x, const Tensor& rrms,
                       const Tensor& weight) {
  if (x.size(-1) == 0) return;
  visit_float(x.dtype(), "rms_norm", [&]<class T>() {
    const RmsNorm<T> args{.y = dx.defined() ? dx.data<T>() : nullptr,
                          .dy = dy.data<T>(),
                          .x = x.data<T>(),
                          .rrms = rrms.data<float>(),
                          .weight = dx.defined() ? weight.data<T>() : nullptr,
                          .rows = rrms.elements(),
                          .channels = x.size(-1),
                          .epsilon = 0};
    if (dx.defined() && args.rows > 0) {
      visit_norm_rows<T>(
          args.channels,
          [&]<int threads, int n, bool aligned, int turns>() {
            launch(context, "rms_norm_backward",
                   {blocks_for(args.rows, norm_threads / threads), norm_threads},
                   rms_norm_input_kernel<T, threads, n, aligned, turns>, args);
          },
          args.y, args.dy, args.x, args.weight);
    }
    if (dweight.defined()) launch_weight_gradient(context, dweight.data<T>(), args);
  });
}

}  // namespace tessera::cuda
