// The gradient of a table of embeddings on CUDA, for embedding, embedding_bag and row_products. Row
// v of the gradient is the f32 sum of the rows of dy that belong to token v, in order of position.
// The order must not depend on the timing of threads, so positions are sorted by token in two
// steps:
//  - A counting sort with integer atomics groups the positions by token, each group in any order.
//  - A second sort orders the positions of each token.
// Then a warp sums the rows of a token. If the token is frequent, a block sums its rows. The
// function sum_rows is also used for other sums of rows, such as the forward of embedding_bag.
#pragma once

#include <algorithm>

#include "core/cuda/fault.cuh"
#include "core/ops/rows.cuh"

namespace tessera::cuda::embedding {

constexpr int threads = 256;
constexpr int warps = threads / warp_size;

struct WarpOfGrid {
  int lane = static_cast<int>(threadIdx.x) % warp_size;
  int warp = static_cast<int>(threadIdx.x) / warp_size;  // index in the block
  int64_t index = int64_t{blockIdx.x} * warps + warp;
};

/// The tokens to look up. With offsets, only tokens at positions [first offset, last offset) are
/// looked up.
struct Positions {
  const int32_t* tokens;
  int64_t count;
  int64_t vocabulary;
  FaultKind fault;                   // reported for a token outside the vocabulary
  const int32_t* offsets = nullptr;  // (bags + 1)
  int64_t bags = 0;

  __device__ int64_t begin() const { return offsets == nullptr ? 0 : inside(offsets[0]); }
  __device__ int64_t end() const { return offsets == nullptr ? count : inside(offsets[bags]); }
  /// Clamps an offset to [0, count], so that a wrong offset causes no out-of-bounds access. The
  /// forward of embedding_bag reports wrong offsets.
  __device__ int64_t inside(int64_t offset) const {
    return std::min(std::max(offset, int64_t{0}), count);
  }
  __device__ bool known(int32_t token) const { return token >= 0 && token < vocabulary; }
};

// The sort uses `ends` (V + 1), where V is the vocabulary. ends[0] stays 0. For token v,
//   1. count_tokens_kernel sets ends[v + 1] to the number of positions of v;
//   2. scan_counts_kernel sets ends[v + 1] to the index in `order` where these positions begin;
//   3. place_positions_kernel writes the positions, and moves ends[v + 1] to their end.
// Afterwards, the positions of token v are order[i] for ends[v] <= i < ends[v + 1]. Tokens outside
// the vocabulary are left out.

static __global__ void __launch_bounds__(threads)
    count_tokens_kernel(int32_t* ends, Positions positions, Fault* fault) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < positions.begin() || i >= positions.end()) return;
  const int32_t token = positions.tokens[i];
  if (!positions.known(token)) {
    report_fault(fault, positions.fault, i, token, positions.vocabulary);
  } else {
    atomicAdd(ends + token + 1, 1);
  }
}

/// Returns the sum of `value` over the threads of the block that come before the calling thread.
template <int block_threads>
__device__ inline int32_t sum_before(int32_t value) {
  __shared__ int32_t warp_sums[block_threads / warp_size];
  const int lane = static_cast<int>(threadIdx.x) % warp_size;
  const int warp = static_cast<int>(threadIdx.x) / warp_size;
  int32_t sum = value;  // after the loop: the sum over lanes 0 to `lane`
  for (int offset = 1; offset < warp_size; offset *= 2) {
    const int32_t other = __shfl_up_sync(whole_warp, sum, static_cast<unsigned>(offset));
    if (lane >= offset) sum += other;
  }
  __syncthreads();  // other warps may still read the previous call's warp_sums
  if (lane == warp_size - 1) warp_sums[warp] = sum;
  __syncthreads();
  int32_t before = sum - value;
  for (int w = 0; w < warp; ++w) before += warp_sums[w];
  return before;
}

constexpr int scan_threads = 1024;

/// Replaces counts by their exclusive prefix sums, with one block. Each thread first sums a slice
/// of the counts, and then writes the prefix sums of its slice.
static __global__ void __launch_bounds__(scan_threads)
    scan_counts_kernel(int32_t* counts, int64_t count) {
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

static __global__ void __launch_bounds__(threads)
    place_positions_kernel(int32_t* order, int32_t* ends, Positions positions) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i < positions.begin() || i >= positions.end()) return;
  const int32_t token = positions.tokens[i];
  if (!positions.known(token)) return;
  order[atomicAdd(ends + token + 1, 1)] = static_cast<int32_t>(i);
}

// If a token has at most this many positions, a warp sorts them by ranking each position among all
// positions of the token. If a token has more positions, a block reads the tokens of all positions
// and collects the positions of this token in ascending order.
constexpr int rank_positions = 256;

/// Writes the positions of `token`, in ascending order, to `order`. All threads of the block must
/// call this function.
__device__ inline void collect_positions(int32_t* order, const Positions& positions,
                                         int64_t token) {
  const int64_t rows = positions.end() - positions.begin();
  const int64_t slice = (rows + threads - 1) / threads;
  const int64_t first = positions.begin() + std::min(threadIdx.x * slice, rows);
  const int64_t last = std::min(first + slice, positions.end());
  int32_t count = 0;
  for (int64_t i = first; i < last; ++i) count += positions.tokens[i] == token ? 1 : 0;
  int32_t to = sum_before<threads>(count);
  for (int64_t i = first; i < last; ++i) {
    if (positions.tokens[i] == token) order[to++] = static_cast<int32_t>(i);
  }
}

/// Sorts each token's positions, with a warp per token, or a block for a frequent token.
static __global__ void __launch_bounds__(threads)
    sort_positions_kernel(int32_t* order, const int32_t* ends, Positions positions) {
  __shared__ int32_t unsorted[warps][rank_positions];
  const int64_t vocabulary = positions.vocabulary;
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
      collect_positions(order + ends[token], positions, token);
    }
  }
}

/// Sorts positions by token into `order` (positions.count). Writes `ends` (V + 1), which is
/// described above count_tokens_kernel.
inline void sort_by_token(const Context& context, const Tensor& order, const Tensor& ends,
                          const Positions& positions) {
  constexpr const char* name = "embedding_backward";
  auto* const last = ends.data<int32_t>();
  auto* const sorted = order.data<int32_t>();
  TESSERA_CUDA(cudaMemsetAsync(last, 0, static_cast<size_t>(ends.bytes()), stream_of(context)));
  if (positions.count == 0) return finish_call(context, name);
  const LaunchShape by_position{blocks_for(positions.count, threads), threads};
  launch(context, name, by_position, count_tokens_kernel, last, positions, device_fault(context));
  launch(context, name, {1, scan_threads}, scan_counts_kernel, last + 1, positions.vocabulary);
  launch(context, name, by_position, place_positions_kernel, sorted, last, positions);
  launch(context, name, {blocks_for(positions.vocabulary, warps), threads}, sort_positions_kernel,
         sorted, last, positions);
}

/// sum += weight_of(i) * x[row_of(i)] for i = 0, 1, ..., rows - 1, in this order, for n columns of
/// matrix x from `column` on.
template <bool aligned, int n, class T, class RowOf, class WeightOf>
__device__ inline void sum_rows(Floats<n>& sum, const T* x, int64_t channels, int64_t column,
                                int64_t rows, const RowOf& row_of, const WeightOf& weight_of) {
  constexpr int at_once = 8;  // loads in flight
  for (int64_t first = 0; first < rows; first += at_once) {
    Elements<T, n> loaded[at_once];
    unrolled<at_once>([&](int k) {
      if (first + k >= rows) return;
      loaded[k] = load_elements<aligned, n>(x + row_of(first + k) * channels + column);
    });
    unrolled<at_once>([&](int k) {
      if (first + k >= rows) return;
      const Floats<n> values = widened(loaded[k]);
      const float weight = weight_of(first + k);
      unrolled<n>([&](int i) { sum.value[i] += weight * values.value[i]; });
    });
  }
}

/// Returns the factor of a row of the table in the gradient of row_products' squares. `places` is
/// the number of places that look up this row. Returns 0 if dsquares is null. Callers must not
/// multiply by the factor 0, because 0 times an infinite value is NaN.
__device__ inline float squares_factor(const float* dsquares, int64_t places,
                                       int64_t places_per_lookup) {
  return dsquares == nullptr ? 0.0f : 2 * *dsquares * float(places / places_per_lookup);
}

template <class T, bool weighted>
struct TableGradient {
  T* dtable;
  const T* dy;
  const int32_t* order;
  const int32_t* ends;
  const float* weights;  // indexed by the values of `order`; null if all weights are 1
  int64_t vocabulary;
  int64_t channels;
  bool accumulate;
  int64_t per_row;      // number of neighbouring positions that share a row of dy
  const int32_t* rows;  // the row of dy of each position; null if per_row gives the row
  int64_t row_count;    // number of rows of dy
  const T* own;         // (V, C), see Sorted; not read if dsquares is null
  const float* dsquares;
  int64_t places_per_lookup;

  __device__ int64_t row_of(int64_t place) const {
    if (rows == nullptr) return per_row == 1 ? place : place / per_row;
    // If the row is out of range, the forward has reported a fault. Row 0 is read in its place.
    const int32_t row = rows[place];
    return row >= 0 && row < row_count ? row : 0;
  }
  __device__ float weight_of(int64_t place) const {
    if constexpr (weighted) return weights[place];
    return 1.0f;
  }
};

// If a token has more than block_rows rows, a block sums them, with block_rows rows in flight. A
// single warp would wait for memory once for every 8 rows.
constexpr int block_rows = 64;

/// Sums the rows of dy that belong to one token, with a whole block, in columns
/// [column, column + warp_size * n). The warps divide the rows among themselves and load them into
/// shared memory. Then each of the first `warp_size * n` threads sums one column.
template <bool aligned, int n, class T, bool weighted>
__device__ inline void sum_frequent_token(const TableGradient<T, weighted>& args, int64_t token,
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
      const T* row = args.dy + args.row_of(args.order[first + i]) * args.channels;
      rows[i][lane] = load_elements<aligned, n>(row + column + lane * n);
    });
    __syncthreads();
    if (thread < width && column + thread < args.channels) {
      for (int i = 0; i < count; ++i) {
        const float weight = args.weight_of(args.order[first + i]);
        sum += weight * float(rows[i][thread / n].value[thread % n]);
      }
    }
    __syncthreads();
  }
  if (thread >= width || column + thread >= args.channels) return;
  const int64_t at = token * args.channels + column + thread;
  if constexpr (weighted) {
    const float factor =
        squares_factor(args.dsquares, end - args.ends[token], args.places_per_lookup);
    if (factor != 0) sum += factor * float(args.own[at]);
  }
  T* to = args.dtable + at;
  *to = rounded<T>(args.accumulate ? float(*to) + sum : sum);
}

/// A warp computes 32 * n columns of one token's row of dtable. If the token is frequent, the
/// warp's whole block computes these columns. In the grid, blockIdx.x selects tokens and blockIdx.y
/// selects columns. The launch bounds ask for two blocks on a multiprocessor, which have enough
/// loads in flight. If the bounds asked for more blocks, the compiler would spill loaded rows.
template <class T, bool weighted, int n, bool aligned>
__global__ void __launch_bounds__(threads, 2)
    embedding_backward_kernel(TableGradient<T, weighted> args) {
  const WarpOfGrid at;
  const int64_t first_column = int64_t{blockIdx.y} * warp_size * n;
  const int64_t column = first_column + at.lane * n;
  if (at.index < args.vocabulary && column < args.channels) {
    const int64_t begin = args.ends[at.index];
    const int64_t count = args.ends[at.index + 1] - begin;
    T* to = args.dtable + at.index * args.channels + column;
    // When accumulating, the row of a token that does not occur is left untouched.
    if (count <= block_rows && !(args.accumulate && count == 0)) {
      Floats<n> sum = {};
      sum_rows<aligned>(sum, args.dy, args.channels, column, count,
                        [&](int64_t i) { return args.row_of(args.order[begin + i]); },
                        [&](int64_t i) { return args.weight_of(args.order[begin + i]); });
      if constexpr (weighted) {
        const float factor = squares_factor(args.dsquares, count, args.places_per_lookup);
        if (factor != 0) {
          const T* from = args.own + at.index * args.channels + column;
          const Floats<n> own = widened(load_elements<aligned, n>(from));
          unrolled<n>([&](int i) { sum.value[i] += factor * own.value[i]; });
        }
      }
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

/// The result of sort_by_token, and which rows of dy to sum with which weights. embedding_bag
/// replaces each position in `order` by the position's row of dy. Then per_row is 1, and `weights`
/// has one weight for each row of dy.
struct Sorted {
  Tensor order;
  Tensor ends;
  Tensor weights;       // f32, indexed by the values of `order`; undefined if all weights are 1
  int64_t per_row = 1;  // number of neighbouring positions that share a row of dy
  Tensor rows = {};     // i32, the row of dy of each position; undefined if per_row gives it
  // Defined only for row_products with squares, whose weights are defined too: the sum of row v has
  // one more term, 2 n dsquares own[v] for n lookups of v.
  Tensor dsquares = {};  // f32 []
  Tensor own = {};       // (V, C), the table
  int64_t places_per_lookup = 1;
};

/// dtable[v] (V, C) is the sum of the weighted rows of dy of token v. If `accumulate`, adds the
/// sums to dtable.
template <bool weighted>
void sum_by_token(const Context& context, const char* name, const Tensor& dtable, const Tensor& dy,
                  const Sorted& sorted, bool accumulate) {
  const int64_t vocabulary = dtable.size(0);
  const int64_t channels = dtable.size(1);
  visit_float(dy.dtype(), name, [&]<class T>() {
    const TableGradient<T, weighted> args{
        .dtable = dtable.data<T>(),
        .dy = dy.data<T>(),
        .order = sorted.order.data<int32_t>(),
        .ends = sorted.ends.data<int32_t>(),
        .weights = weighted ? sorted.weights.data<float>() : nullptr,
        .vocabulary = vocabulary,
        .channels = channels,
        .accumulate = accumulate,
        .per_row = sorted.per_row,
        .rows = sorted.rows.defined() ? sorted.rows.data<int32_t>() : nullptr,
        .row_count = dy.size(0),
        .own = sorted.own.defined() ? sorted.own.data<T>() : nullptr,
        .dsquares = sorted.dsquares.defined() ? sorted.dsquares.data<float>() : nullptr,
        .places_per_lookup = sorted.places_per_lookup};
    visit_access<neighbours<T>>(
        channels,
        [&]<int n, bool aligned>() {
          const dim3 grid(blocks_for(vocabulary, warps), blocks_for(channels, warp_size * n));
          launch(context, name, {grid, threads},
                 embedding_backward_kernel<T, weighted, n, aligned>, args);
        },
        args.dtable, args.dy, args.own);
  });
}

}  // namespace tessera::cuda::embedding
