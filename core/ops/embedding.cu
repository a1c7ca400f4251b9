// embedding on CUDA: y[r] = table[tokens[r]] + positions[r mod T], and its two gradients.
//
// The gradient of the table is, for each token, the fp32 sum of its rows of dy in order of
// position, which must not depend on who is first. So positions are sorted by token: a counting
// sort with integer atomics, which leaves each token's positions in any order, and then a sort of
// each token's positions. A warp sums the rows of a token, a block those of a frequent one.
#include "core/cuda/fault.cuh"
#include "core/ops/embedding.h"
#include "core/ops/rows.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;

struct WarpOfGrid {
  int lane = static_cast<int>(threadIdx.x) % warp_size;
  int warp = static_cast<int>(threadIdx.x) / warp_size;  // of the block
  int64_t index = int64_t{blockIdx.x} * warps + warp;
};

template <class T>
struct Lookup {
  T* y;
  const int32_t* tokens;
  const T* table;
  const T* positions;  // null where there are none
  int64_t rows;
  int64_t channels;
  int64_t vocabulary;
  int64_t positions_per_row;
};

/// A row is a warp's.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) embedding_kernel(Lookup<T> args, Fault* fault) {
  const WarpOfGrid at;
  if (at.index >= args.rows) return;
  int32_t token = args.tokens[at.index];
  if (token < 0 || token >= args.vocabulary) {
    if (at.lane == 0) {
      report_fault(fault, FaultKind::embedding_token, at.index, token, args.vocabulary);
    }
    token = 0;
  }
  const T* word = args.table + token * args.channels;
  const T* place = args.positions == nullptr
                       ? nullptr
                       : args.positions + at.index % args.positions_per_row * args.channels;
  T* y = args.y + at.index * args.channels;
  for (int64_t c = int64_t{at.lane} * n; c < args.channels; c += warp_size * n) {
    Floats<n> values = widened(load_elements<aligned, n>(word + c));
    if (place != nullptr) {
      const Floats<n> more = widened(load_elements<aligned, n>(place + c));
      unrolled<n>([&](int i) { values.value[i] += more.value[i]; });
    }
    store_elements<aligned>(y + c, values);
  }
}

// The sort. `ends` (V + 1): first ends[v + 1] is the number of positions of token v, then where
// they begin in `order`, and when all have been written where they end; ends[0] stays 0. So token v
// has order[ends[v]] up to order[ends[v + 1]]. Tokens outside the vocabulary are left out.

__global__ void __launch_bounds__(threads)
    count_tokens_kernel(int32_t* ends, const int32_t* tokens, int64_t rows, int64_t vocabulary,
                        Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= rows) return;
  const int32_t token = tokens[i];
  if (token < 0 || token >= vocabulary) {
    report_fault(fault, FaultKind::embedding_token, i, token, vocabulary);
  } else {
    atomicAdd(ends + token + 1, 1);
  }
}

/// The sum of `value` over the threads of the block before the calling one.
template <int block_threads>
__device__ inline int32_t sum_before(int32_t value) {
  __shared__ int32_t warp_sums[block_threads / warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  int32_t sum = value;  // of the lanes up to this one
  for (int offset = 1; offset < warp_size; offset *= 2) {
    const int32_t other = __shfl_up_sync(whole_warp, sum, static_cast<unsigned>(offset));
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // warp_sums may still be read from an earlier call
  if (lane == warp_size - 1) warp_sums[warp] = sum;
  __syncthreads();
  int32_t before = sum - value;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  return before;
}

constexpr int scan_threads = 1024;

/// Counts to beginnings, by one block: a thread sums a slice, and goes through it again.
__global__ void __launch_bounds__(scan_threads) scan_counts_kernel(int32_t* counts, int64_t count) {
  const int64_t slice = (count + scan_threads - 1) / scan_threads;
  const int64_t first = std::min(threadIdx.x * slice, count);
  const int64_t last = std::min(first + slice, count);
  int32_t sum = 0;
  for (int64_t i = first; i < last; ++i) sum += counts[i];
  int32_t begin = sum_before<scan_threads>(sum);
  for (int64_t i = first; i < last; ++i) {
    const int32_t own = counts[i];
    counts[i] = begin;
    begin += own;
  }
}

__global__ void __launch_bounds__(threads)
    place_positions_kernel(int32_t* order, int32_t* ends, const int32_t* tokens, int64_t rows,
                           int64_t vocabulary) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= rows) return;
  const int32_t token = tokens[i];
  if (token < 0 || token >= vocabulary) return;
  order[atomicAdd(ends + token + 1, 1)] = static_cast<int32_t>(i);
}

// Up to as many positions are ranked by a warp, each against all others; more are written anew, in
// order, by a block that goes through all tokens.
constexpr int rank_positions = 256;

/// Writes the positions of `token`, in order, to `order`.
__device__ inline void collect_positions(int32_t* order, const int32_t* tokens, int64_t rows,
                                         int64_t token) {
  const int64_t slice = (rows + threads - 1) / threads;
  const int64_t first = std::min(threadIdx.x * slice, rows);
  const int64_t last = std::min(first + slice, rows);
  int32_t count = 0;
  for (int64_t i = first; i < last; ++i) count += tokens[i] == token ? 1 : 0;
  int32_t to = sum_before<threads>(count);
  for (int64_t i = first; i < last; ++i) {
    if (tokens[i] == token) order[to++] = static_cast<int32_t>(i);
  }
}

/// Sorts each token's positions, a warp a token.
__global__ void __launch_bounds__(threads)
    sort_positions_kernel(int32_t* order, const int32_t* ends, const int32_t* tokens, int64_t rows,
                          int64_t vocabulary) {
  __shared__ int32_t unsorted[warps][rank_positions];
  const WarpOfGrid at;
  const int64_t begin = at.index < vocabulary ? ends[at.index] : 0;
  const int64_t count = at.index < vocabulary ? ends[at.index + 1] - begin : 0;
  if (count > 1 && count <= rank_positions) {
    int32_t* own = unsorted[at.warp];
    for (int64_t i = at.lane; i < count; i += warp_size) own[i] = order[begin + i];
    __syncwarp();
    for (int64_t i = at.lane; i < count; i += warp_size) {
      const int32_t position = own[i];
      int32_t rank = 0;
      for (int64_t j = 0; j < count; ++j) rank += own[j] < position ? 1 : 0;
      order[begin + rank] = position;
    }
  }
  for (int w = 0; w < warps; ++w) {
    const int64_t token = int64_t{blockIdx.x} * warps + w;
    if (token >= vocabulary) break;
    if (ends[token + 1] - ends[token] > rank_positions) {
      collect_positions(order + ends[token], tokens, rows, token);
    }
  }
}

/// Sorts positions by token into `order` (R); `ends` (V + 1) as above.
void sort_by_token(const Context& context, const Tensor& order, const Tensor& ends,
                   const Tensor& tokens, int64_t vocabulary) {
  constexpr const char* name = "embedding_backward";
  const int64_t rows = tokens.elements();
  auto* const last = ends.data<int32_t>();
  const auto* const token = tokens.data<int32_t>();
  TESSERA_CUDA(cudaMemsetAsync(last, 0, static_cast<size_t>(ends.bytes()), stream_of(context)));
  if (rows == 0) return;
  const LaunchShape by_row{blocks_for(rows, threads), threads};
  launch(context, name, by_row, count_tokens_kernel, last, token, rows, vocabulary,
         device_fault(context));
  launch(context, name, {1, scan_threads}, scan_counts_kernel, last + 1, vocabulary);
  launch(context, name, by_row, place_positions_kernel, order.data<int32_t>(), last, token, rows,
         vocabulary);
  launch(context, name, {blocks_for(vocabulary, warps), threads}, sort_positions_kernel,
         order.data<int32_t>(), last, token, rows, vocabulary);
}

/// sum += rows row_of(0), row_of(1), ... of dy from column `column` on, in this order.
template <bool aligned, int n, class T, class RowOf>
__device__ inline void sum_rows(Floats<n>& sum, const T* dy, int64_t channels, int64_t column,
                                int64_t rows, const RowOf& row_of) {
  constexpr int at_once = 8;  // loads under way
  for (int64_t first = 0; first < rows; first += at_once) {
    Elements<T, n> loaded[at_once];
    unrolled<at_once>([&](int k) {
      if (first + k >= rows) return;
      loaded[k] = load_elements<aligned, n>(dy + row_of(first + k) * channels + column);
    });
    unrolled<at_once>([&](int k) {
      if (first + k >= rows) return;
      const Floats<n> values = widened(loaded[k]);
      unrolled<n>([&](int i) { sum.value[i] += values.value[i]; });
    });
  }
}

template <class T>
struct TableGradient {
  T* dtable;
  const T* dy;
  const int32_t* order;
  const int32_t* ends;
  int64_t vocabulary;
  int64_t channels;
  bool accumulate;
};

// A token with more rows is summed by a block, which has as many of them under way: a warp alone
// would wait for memory once for every 8.
constexpr int block_rows = 64;

/// The sums of columns [column, column + warp_size * n) of one token by a whole block: warps load
/// rows side by side into shared memory, and each thread goes down one column.
template <bool aligned, int n, class T>
__device__ inline void sum_frequent_token(const TableGradient<T>& args, int64_t token,
                                          int64_t column) {
  constexpr int width = warp_size * n;
  __shared__ Elements<T, n> rows[block_rows][warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  const int thread = static_cast<int>(threadIdx.x);
  const bool inside = column + lane * n < args.channels;
  const int64_t end = args.ends[token + 1];
  float sum = 0;
  for (int64_t first = args.ends[token]; first < end; first += block_rows) {
    const int count = static_cast<int>(std::min<int64_t>(block_rows, end - first));
    unrolled<block_rows / warps>([&](int k) {
      const int i = k * warps + warp;
      if (!inside || i >= count) return;
      const T* row = args.dy + args.order[first + i] * args.channels;
      rows[i][lane] = load_elements<aligned, n>(row + column + lane * n);
    });
    __syncthreads();
    if (thread < width && column + thread < args.channels) {
      for (int i = 0; i < count; ++i) sum += float(rows[i][thread / n].value[thread % n]);
    }
    __syncthreads();
  }
  if (thread >= width || column + thread >= args.channels) return;
  T* to = args.dtable + token * args.channels + column + thread;
  *to = rounded<T>(args.accumulate ? float(*to) + sum : sum);
}

/// Threads of a warp: columns of one token. Blocks (x, y) of the grid: tokens, columns.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) embedding_backward_kernel(TableGradient<T> args) {
  const WarpOfGrid at;
  const int64_t first_column = int64_t{blockIdx.y} * warp_size * n;
  const int64_t column = first_column + at.lane * n;
  if (at.index < args.vocabulary && column < args.channels) {
    const int64_t begin = args.ends[at.index];
    const int64_t count = args.ends[at.index + 1] - begin;
    T* to = args.dtable + at.index * args.channels + column;
    // What is added to stays as it is where there is nothing to add.
    if (count <= block_rows && !(args.accumulate && count == 0)) {
      Floats<n> sum = {};
      sum_rows<aligned>(sum, args.dy, args.channels, column, count,
                        [&](int64_t i) { return args.order[begin + i]; });
      if (args.accumulate) {
        const Floats<n> before = widened(load_elements<aligned, n>(to));
        unrolled<n>([&](int i) { sum.value[i] = before.value[i] + sum.value[i]; });
      }
      store_elements<aligned>(to, sum);
    }
  }
  for (int w = 0; w < warps; ++w) {
    const int64_t token = int64_t{blockIdx.x} * warps + w;
    if (token >= args.vocabulary) break;
    if (args.ends[token + 1] - args.ends[token] > block_rows) {
      sum_frequent_token<aligned, n>(args, token, first_column);
    }
  }
}

/// A warp has columns of one position; blocks (x, y) of the grid: positions, columns.
template <class T, int n, bool aligned>
__global__ void __launch_bounds__(threads)
    position_backward_kernel(T* dpositions, const T* dy, int64_t positions, int64_t channels,
                             int64_t batch, int64_t tokens_per_row) {
  const WarpOfGrid at;
  const int64_t column = (int64_t{blockIdx.y} * warp_size + at.lane) * n;
  if (at.index >= positions || column >= channels) return;
  Floats<n> sum = {};
  if (at.index < tokens_per_row) {
    sum_rows<aligned>(sum, dy, channels, column, batch,
                      [&](int64_t b) { return b * tokens_per_row + at.index; });
  }
  store_elements<aligned>(dpositions + at.index * channels + column, sum);
}

}  // namespace

/// Takes no workspace. A token outside the vocabulary is thrown by the host's next synchronisation.
void embedding_forward(const Context& context, const Tensor& y, const Tensor& tokens,
                       const Tensor& table, const Tensor& positions, int64_t positions_per_row) {
  if (y.elements() == 0) return;
  TESSERA_CHECK(table.size(0) > 0, "embedding: the table has shape {}, expected words",
                table.shape());
  visit_float(y.dtype(), "embedding", [&]<class T>() {
    const Lookup<T> args{.y = y.data<T>(),
                         .tokens = tokens.data<int32_t>(),
                         .table = table.data<T>(),
                         .positions = positions.defined() ? positions.data<T>() : nullptr,
                         .rows = tokens.elements(),
                         .channels = table.size(1),
                         .vocabulary = table.size(0),
                         .positions_per_row = positions_per_row};
    visit_access<neighbours<T>>(
        args.channels,
        [&]<int n, bool aligned>() {
          launch(context, "embedding", {blocks_for(args.rows, warps), threads},
                 embedding_kernel<T, n, aligned>, args, device_fault(context));
        },
        args.y, args.table, args.positions);
  });
}

/// Workspace: 4 bytes * (V + 1 + R), as on the CPU.
void embedding_backward(const Context& context, const Tensor& dtable, const Tensor& dy,
                        const Tensor& tokens, bool accumulate) {
  const int64_t vocabulary = dtable.size(0);
  const int64_t channels = dtable.size(1);
  const int64_t work = tokens.elements() + vocabulary;
  TESSERA_CHECK(work < INT32_MAX, "embedding: {} tokens and words together, at most {}", work,
                INT32_MAX);
  if (dtable.elements() == 0) return;
  const Tensor ends = context.workspace({vocabulary + 1}, DType::i32);
  const Tensor order = context.workspace({tokens.elements()}, DType::i32);
  sort_by_token(context, order, ends, tokens, vocabulary);
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    const TableGradient<T> args{.dtable = dtable.data<T>(),
                                .dy = dy.data<T>(),
                                .order = order.data<int32_t>(),
                                .ends = ends.data<int32_t>(),
                                .vocabulary = vocabulary,
                                .channels = channels,
                                .accumulate = accumulate};
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(vocabulary, warps), blocks_for(channels, warp_size * n));
          launch(context, "embedding_backward", {grid, threads},
                 embedding_backward_kernel<T, n, aligned>, args);
        },
        args.dtable, args.dy);
  });
}

/// Takes no workspace.
void position_backward(const Context& context, const Tensor& dpositions, const Tensor& dy,
                       int64_t tokens_per_row) {
  if (dpositions.elements() == 0) return;
  const int64_t positions = dpositions.size(0);
  const int64_t channels = dpositions.size(1);
  visit_float(dy.dtype(), "embedding", [&]<class T>() {
    T* const to = dpositions.data<T>();
    const T* const from = dy.data<T>();
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(positions, warps), blocks_for(channels, warp_size * n));
          launch(context, "position_backward", {grid, threads},
                 position_backward_kernel<T, n, aligned>, to, from, positions, channels, dy.size(0),
                 tokens_per_row);
        },
        to, from);
  });
}

}  // namespace tessera::cuda
