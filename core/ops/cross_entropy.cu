// cross_entropy on CUDA. The forward and the backward each make one pass over the logits.
// cross_entropy_in_place computes the losses and the gradient in one kernel.
//
// In the forward, each thread keeps a running maximum, and the sum of exponentials relative to this
// maximum (Milakov and Gimelshein, arXiv:1805.02867). The sums are then rescaled to the row's
// maximum and added in a fixed order. The bits of a row's result depend only on the row's values,
// dtype and stride. If the stride is not a multiple of the number of elements in one access, the
// rows are read element by element. Such reads cost little, because neighbouring lanes read
// neighbouring elements, and the exponentials take longer than the loads.
//
// The backward of weighted_cross_entropy is also in this file. No launcher here needs workspace.
#include <cmath>
#include <limits>

#include "core/cuda/fault.cuh"
#include "core/ops/cross_entropy.h"
#include "core/ops/rows.cuh"
#include "core/ops/weighted_cross_entropy.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;
/// Number of elements that load_batch loads: 64 bytes of f32.
constexpr int batch = 16;
/// In the forward and in cross_entropy_in_place, one warp handles a row of at most this many
/// elements, and a block handles a longer row. In the backward, a block handles a range of columns,
/// either in 8 rows of at most this many elements or in one longer row.
constexpr int64_t warp_columns = 1024;
constexpr int block_threads = 512;

constexpr float log2_e = 1.44269504f;

/// Returns exp(x), computed as 2^(x log2(e)) with half the instructions of expf. Rounding the
/// product causes a relative error of about |x| 2^-24. x is at most about zero, so the error is
/// large only if the result is close to zero.
__device__ inline float exponential(float x) { return exp2f(x * log2_e); }

/// Returns the column of a row's target, or column 0 if the target is out of range. check_targets
/// reports such a target.
__device__ inline int64_t column_of(int32_t target, int64_t columns) {
  return target >= 0 && target < columns ? target : 0;
}

/// Returns the shift to subtract from logits: `maximum`, or 0 if all logits so far are -inf,
/// because -inf - (-inf) would be NaN.
__device__ inline float finite_shift(float maximum) {
  return maximum == -std::numeric_limits<float>::infinity() ? 0.0f : maximum;
}

/// A running maximum, and the sum of exponentials relative to the maximum. A NaN does not change
/// the maximum, but makes the sum NaN.
struct RunningSum {
  float maximum = -std::numeric_limits<float>::infinity();
  float sum = 0;

  template <int count>
  __device__ void add(const float (&x)[count]) {
    float highest = maximum;
    unrolled<count>([&](int i) { highest = fmaxf(highest, x[i]); });
    const float shift = finite_shift(highest);
    sum *= exponential(maximum - shift);
    unrolled<count>([&](int i) { sum += exponential(x[i] - shift); });
    maximum = highest;
  }
};

/// Loads a batch: n elements of x from `first` on, the next n from first + step on, and so on.
/// Values past the end of the row become -inf. If `whole`, the caller promises that no element is
/// past the end. The padding between `columns` and the row's stride may be uninitialised, so it is
/// not read.
template <bool whole, int n, bool aligned, class T>
__device__ inline void load_batch(float (&values)[batch], const T* x, int64_t first, int64_t step,
                                  int64_t columns) {
  constexpr int turns = batch / n;
  Elements<T, n> loaded[turns];  // all loads are in flight before the first value is used
  unrolled<turns>([&](int turn) {
    const int64_t at = first + turn * step;
    if (whole || at + n <= columns) {
      loaded[turn] = load_elements<aligned, n>(x + at);
    } else {
      unrolled<n>([&](int i) {
        if (at + i < columns) loaded[turn].value[i] = x[at + i];
      });
    }
  });
  unrolled<turns>([&](int turn) {
    const int64_t at = first + turn * step;
    unrolled<n>([&](int i) {
      const bool inside = whole || at + i < columns;
      values[turn * n + i] =
          inside ? float(loaded[turn].value[i]) : -std::numeric_limits<float>::infinity();
    });
  });
}

/// Returns the normalizer of a row, to all threads that share the row.
template <int row_threads, int n, bool aligned, class T>
__device__ inline Normalizer row_normalizer(const T* x, int thread, int64_t columns) {
  constexpr int turns = batch / n;
  constexpr int64_t step = row_threads * n;
  RunningSum running;
  int64_t first = int64_t{thread} * n;
  for (; first + (turns - 1) * step + n <= columns; first += turns * step) {
    float values[batch];
    load_batch<true, n, aligned>(values, x, first, step, columns);
    running.add(values);
  }
  if (first < columns) {
    float values[batch];
    load_batch<false, n, aligned>(values, x, first, step, columns);
    running.add(values);
  }
  const float maximum = row_max<row_threads>(running.maximum);
  const float sum =
      row_sum<row_threads>(running.sum * exponential(running.maximum - finite_shift(maximum)));
  return {.maximum = maximum, .log_sum = logf(sum)};
}

/// Returns the loss of a row. `hit` is the logit of its target.
__device__ inline float row_loss(const Normalizer& normalizer, float hit) {
  return (normalizer.maximum - hit) + normalizer.log_sum;
}

template <class T>
struct Forward {
  float* losses;
  float* normalizers;
  const T* logits;
  const int32_t* targets;
  int64_t rows;
  int64_t columns;
  int64_t stride;  // of the rows of logits
};

template <class T, int row_threads, int n, bool aligned>
__global__ void __launch_bounds__(block_threads) cross_entropy_kernel(Forward<T> args) {
  const int thread = static_cast<int>(threadIdx.x) % row_threads;
  const int64_t row = int64_t{blockIdx.x} * (blockDim.x / row_threads) + threadIdx.x / row_threads;
  if (row >= args.rows) return;
  const T* x = args.logits + row * args.stride;
  const float hit = float(x[column_of(args.targets[row], args.columns)]);
  const Normalizer normalizer = row_normalizer<row_threads, n, aligned>(x, thread, args.columns);
  if (thread != 0) return;
  args.normalizers[2 * row] = normalizer.maximum;
  args.normalizers[2 * row + 1] = normalizer.log_sum;
  args.losses[row] = row_loss(normalizer, hit);
}

template <class D, class T>
struct Backward {
  D* dlogits;
  const float* dloss;
  const T* logits;
  const float* normalizers;
  const int32_t* targets;
  float scale;
  const float* shares;  // a factor for each row in place of `scale`, or null
  int64_t rows;
  int64_t columns;
  int64_t stride;  // of the rows of logits and dlogits
};

/// The values from which the gradient of a row of logits is computed, besides the logits.
struct GradientRow {
  float maximum;
  float log2_sum;  // log_sum times log2(e), so that the exponent takes one fused multiply-add
  float factor;
  bool zero;  // if true, the gradient is 0, even if logits or dloss are NaN or infinite
  int64_t target;
  int64_t columns;
};

/// Writes the gradient for the batch of elements that load_batch loads with `first` and `step`. The
/// thread reads the whole batch before it writes, so `out` may be `x`. If `whole`, the caller
/// promises that no element is past the end of the row.
template <bool whole, int n, bool aligned, class D, class T>
__device__ inline void write_gradient(D* out, const T* x, const GradientRow& row, int64_t first,
                                      int64_t step) {
  constexpr int turns = batch / n;
  float values[batch];
  load_batch<whole, n, aligned>(values, x, first, step, row.columns);
  unrolled<turns>([&](int turn) {
    const int64_t at = first + turn * step;
    Floats<n> gradient;
    unrolled<n>([&](int i) {
      const float probability =
          exp2f(fmaf(values[turn * n + i] - row.maximum, log2_e, -row.log2_sum));
      const float slope = at + i == row.target ? probability - 1.0f : probability;
      gradient.value[i] = row.zero ? 0.0f : slope * row.factor;
    });
    if (whole || at + n <= row.columns) {
      store_elements<aligned>(out + at, gradient);
    } else {
      unrolled<n>([&](int i) {
        if (at + i < row.columns) out[at + i] = rounded<D>(gradient.value[i]);
      });
    }
  });
}

template <class T>
struct InPlace {
  float* losses;
  T* logits;
  const int32_t* targets;
  float scale;
  int64_t rows;
  int64_t columns;
  int64_t stride;  // of the rows of logits
};

/// Reads a row twice, the second time mostly from the L1 cache. Two blocks share a multiprocessor,
/// and two rows of GPT-2's vocabulary in 16 bits take 200 KB of the 256 KB that an H200's
/// multiprocessor has for its L1 cache and shared memory.
template <class T, int row_threads, int n, bool aligned>
__global__ void __launch_bounds__(block_threads) cross_entropy_in_place_kernel(InPlace<T> args) {
  constexpr int turns = batch / n;
  constexpr int64_t step = row_threads * n;
  const int thread = static_cast<int>(threadIdx.x) % row_threads;
  const int64_t index =
      int64_t{blockIdx.x} * (blockDim.x / row_threads) + threadIdx.x / row_threads;
  if (index >= args.rows) return;
  T* x = args.logits + index * args.stride;
  const int64_t target = column_of(args.targets[index], args.columns);
  const float hit = float(x[target]);
  const Normalizer normalizer = row_normalizer<row_threads, n, aligned>(x, thread, args.columns);
  if (thread == 0) args.losses[index] = row_loss(normalizer, hit);
  // All threads must have read the target's logit before one of them overwrites it. If a block
  // shares the row, its threads have synchronised in row_normalizer. If a warp shares the row, its
  // lanes have only shuffled values there, and shuffles do not order accesses to memory.
  if constexpr (row_threads == warp_size) __syncwarp();
  const GradientRow row{.maximum = normalizer.maximum,
                        .log2_sum = normalizer.log_sum * log2_e,
                        .factor = args.scale,
                        .zero = false,
                        .target = target,
                        .columns = args.columns};
  int64_t first = int64_t{thread} * n;
  for (; first + (turns - 1) * step + n <= args.columns; first += turns * step) {
    write_gradient<true, n, aligned>(x, x, row, first, step);
  }
  if (first < args.columns) write_gradient<false, n, aligned>(x, x, row, first, step);
}

/// Within a block, threads along x go over columns and threads along y over rows. In the grid,
/// blocks along x go over rows and blocks along y over columns.
template <class D, class T, int n, bool aligned>
__global__ void __launch_bounds__(threads) cross_entropy_backward_kernel(Backward<D, T> args) {
  constexpr int turns = batch / n;
  const int64_t index = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
  if (index >= args.rows) return;
  const float share = args.shares == nullptr ? args.scale : args.shares[index];
  const GradientRow row{.maximum = args.normalizers[2 * index],
                        .log2_sum = args.normalizers[2 * index + 1] * log2_e,
                        .factor = *args.dloss * share,
                        .zero = args.shares != nullptr && share == 0,
                        .target = column_of(args.targets[index], args.columns),
                        .columns = args.columns};
  const T* x = args.logits + index * args.stride;
  D* out = args.dlogits + index * args.stride;
  const int64_t step = int64_t{blockDim.x} * n;
  const int64_t first = blockIdx.y * turns * step + int64_t{threadIdx.x} * n;
  if (first + (turns - 1) * step + n <= args.columns) {
    write_gradient<true, n, aligned>(out, x, row, first, step);
  } else if (first < args.columns) {
    write_gradient<false, n, aligned>(out, x, row, first, step);
  }
}

__global__ void __launch_bounds__(threads)
    check_targets_kernel(Fault* fault, FaultKind kind, const int32_t* targets, int64_t count,
                         int64_t vocabulary) {
  const int64_t i = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (i >= count) return;
  const int32_t target = targets[i];
  if (target < 0 || target >= vocabulary) report_fault(fault, kind, i, target, vocabulary);
}

FaultKind fault_of_targets(std::string_view operation) {
  if (operation == "cross_entropy") return FaultKind::cross_entropy_target;
  if (operation == "linear_cross_entropy") return FaultKind::linear_cross_entropy_target;
  if (operation == "smoothed_cross_entropy") return FaultKind::smoothed_cross_entropy_target;
  fail("check_targets: operation {} has no kind of fault", operation);
}

}  // namespace

/// The host does not wait for the result. If a target is outside the vocabulary, the host throws at
/// its next synchronisation with the device.
void check_targets(const Context& context, std::string_view operation, const Tensor& targets,
                   int64_t vocabulary) {
  const int64_t count = targets.elements();
  if (count == 0) return;
  launch(context, "check_targets", {blocks_for(count, threads), threads}, check_targets_kernel,
         device_fault(context), fault_of_targets(operation), targets.data<int32_t>(), count,
         vocabulary);
}

namespace {

/// Calls body.operator()<row_threads, n, aligned>(grid). `row_threads` threads share a row of
/// args.logits, a thread handles n neighbours at a time (visit_access), and `grid` covers all rows.
template <class Args, class Body>
void visit_rows(const Args& args, Body&& body) {
  using T = std::remove_cvref_t<decltype(*args.logits)>;
  visit_access<neighbours<T>>(
      args.stride,
      [&]<int n, bool aligned>() {
        if (args.columns <= warp_columns) {
          body.template operator()<warp_size, n, aligned>(
              LaunchShape{blocks_for(args.rows, threads / warp_size), threads});
        } else {
          body.template operator()<block_threads, n, aligned>(
              LaunchShape{blocks_for(args.rows, 1), block_threads});
        }
      },
      args.logits);
}

}  // namespace

void cross_entropy_forward(const Context& context, const Tensor& losses, const Tensor& normalizers,
                           const Tensor& logits, const Tensor& targets, int64_t vocabulary) {
  if (targets.elements() == 0) return;
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    const Forward<T> args{.losses = losses.data<float>(),
                          .normalizers = normalizers.data<float>(),
                          .logits = logits.data<T>(),
                          .targets = targets.data<int32_t>(),
                          .rows = targets.elements(),
                          .columns = vocabulary,
                          .stride = logits.size(-1)};
    visit_rows(args, [&]<int row_threads, int n, bool aligned>(const LaunchShape& grid) {
      launch(context, "cross_entropy", grid, cross_entropy_kernel<T, row_threads, n, aligned>,
             args);
    });
  });
}

void cross_entropy_in_place(const Context& context, const Tensor& losses, const Tensor& logits,
                            const Tensor& targets, int64_t vocabulary, float scale) {
  if (targets.elements() == 0) return;
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    const InPlace<T> args{.losses = losses.data<float>(),
                          .logits = logits.data<T>(),
                          .targets = targets.data<int32_t>(),
                          .scale = scale,
                          .rows = targets.elements(),
                          .columns = vocabulary,
                          .stride = logits.size(-1)};
    visit_rows(args, [&]<int row_threads, int n, bool aligned>(const LaunchShape& grid) {
      launch(context, "cross_entropy_in_place", grid,
             cross_entropy_in_place_kernel<T, row_threads, n, aligned>, args);
    });
  });
}

namespace {

template <class D, class T>
void launch_backward(const Context& context, const Backward<D, T>& args) {
  const dim3 block =
      args.columns <= warp_columns ? dim3(warp_size, threads / warp_size) : dim3(threads);
  const dim3 grid(blocks_for(args.rows, block.y), blocks_for(args.columns, block.x * batch));
  visit_access<neighbours<D, T>>(
      args.stride,
      [&]<int n, bool aligned>() {
        launch(context, "cross_entropy_backward", {grid, block},
               cross_entropy_backward_kernel<D, T, n, aligned>, args);
      },
      args.dlogits, args.logits);
}

}  // namespace

void cross_entropy_backward(const Context& context, const Tensor& dlogits, const Tensor& dloss,
                            const Tensor& logits, const Tensor& normalizers, const Tensor& targets,
                            int64_t vocabulary, float scale) {
  if (targets.elements() == 0 || vocabulary == 0) return;
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    visit_float(dlogits.dtype(), "cross_entropy", [&]<class D>() {
      launch_backward(context, Backward<D, T>{.dlogits = dlogits.data<D>(),
                                              .dloss = dloss.data<float>(),
                                              .logits = logits.data<T>(),
                                              .normalizers = normalizers.data<float>(),
                                              .targets = targets.data<int32_t>(),
                                              .scale = scale,
                                              .shares = nullptr,
                                              .rows = targets.elements(),
                                              .columns = vocabulary,
                                              .stride = logits.size(-1)});
    });
  });
}

void weighted_cross_entropy_backward(const Context& context, const Tensor& dlogits,
                                     const Tensor& dloss, const Tensor& logits,
                                     const Tensor& normalizers, const Tensor& targets,
                                     const Tensor& shares) {
  visit_float(logits.dtype(), "cross_entropy", [&]<class T>() {
    launch_backward(context, Backward<T, T>{.dlogits = dlogits.data<T>(),
                                            .dloss = dloss.data<float>(),
                                            .logits = logits.data<T>(),
                                            .normalizers = normalizers.data<float>(),
                                            .targets = targets.data<int32_t>(),
                                            .scale = 1,
                                            .shares = shares.data<float>(),
                                            .rows = targets.elements(),
                                            .columns = logits.size(-1),
                                            .stride = logits.size(-1)});
  });
}

}  // namespace tessera::cuda
