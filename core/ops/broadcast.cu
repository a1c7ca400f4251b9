// The launchers copy_walk and sum_to on CUDA. If neighbouring elements of x belong to neighbouring
// sums, sum_to computes each sum with one thread. Otherwise sum_to computes each sum with a block:
// each thread adds up every 256th element, and the threads' sums are added in a fixed order. In
// both cases, the order of the additions depends on the shapes alone.
#include "core/ops/broadcast.cuh"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

/// Some dimensions of x: either those that y keeps, or those that are added up. Each has its stride
/// in x.
struct Dims {
  int rank = 0;
  int64_t count = 1;
  std::array<int64_t, Shape::max_rank> sizes{};
  std::array<int64_t, Shape::max_rank> strides{};

  void push_back(int64_t size, int64_t stride) {
    sizes[static_cast<size_t>(rank)] = size;
    strides[static_cast<size_t>(rank++)] = stride;
    count *= size;
  }
  /// Returns the offset of element `index`. Dimensions are in ascending order of stride, and the
  /// first dimension varies fastest.
  __device__ int64_t offset(int64_t index) const {
    int64_t result = 0;
    for (int dim = 0; dim < rank; ++dim) {
      const auto at = static_cast<size_t>(dim);
      result += index % sizes[at] * strides[at];
      index /= sizes[at];
    }
    return result;
  }
};

template <class T>
__global__ void __launch_bounds__(threads)
    sum_by_threads_kernel(T* y, const T* x, Dims kept, Dims summed, float factor) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  if (element >= kept.count) return;
  const T* const from = x + kept.offset(element);
  double sum = 0;
  for (int64_t i = 0; i < summed.count; ++i) sum += double(float(from[summed.offset(i)]));
  y[element] = rounded<T>(static_cast<float>(factor * sum));
}

template <class T>
__global__ void __launch_bounds__(threads)
    sum_by_blocks_kernel(T* y, const T* x, Dims kept, Dims summed, float factor) {
  const T* const from = x + kept.offset(blockIdx.x);
  double sum = 0;
  for (int64_t i = threadIdx.x; i < summed.count; i += threads) {
    sum += double(float(from[summed.offset(i)]));
  }
  const double total = block_sum_once<threads>(sum);
  if (threadIdx.x == 0) y[blockIdx.x] = rounded<T>(static_cast<float>(factor * total));
}

template <class T>
struct WalkCopy {
  T* y;
  const T* x;
  float factor;
  __device__ void operator()(int64_t element, const WalkPlaces& at) const {
    y[element] = rounded<T>(factor * float(x[at.a]));
  }
};

}  // namespace

void sum_to(const Context& context, const Tensor& y, const Tensor& x, float factor) {
  if (y.elements() == 0) return;
  const BroadcastWalk walk = broadcast_walk(x.shape(), y.shape(), x.shape());
  Dims kept, summed;
  int64_t stride = 1;
  for (int dim = walk.rank; dim-- > 0;) {
    const auto at = static_cast<size_t>(dim);
    (walk.a_strides[at] == 0 ? summed : kept).push_back(walk.sizes[at], stride);
    stride *= walk.sizes[at];
  }
  const bool by_threads = walk.a_strides[static_cast<size_t>(walk.rank - 1)] != 0;
  visit_float(x.dtype(), "sum", [&]<class T>() {
    if (by_threads) {
      launch(context, "sum_to", {blocks_for(kept.count, threads), threads},
             sum_by_threads_kernel<T>, y.data<T>(), x.data<T>(), kept, summed, factor);
    } else {
      launch(context, "sum_to", {blocks_for(kept.count, 1), threads}, sum_by_blocks_kernel<T>,
             y.data<T>(), x.data<T>(), kept, summed, factor);
    }
  });
}

void copy_walk(const Context& context, const Tensor& y, const Tensor& x,
               const BroadcastWalk& walk, float factor) {
  visit_float(x.dtype(), "copy_walk", [&]<class T>() {
    map_walk(context, "copy_walk", walk, WalkCopy<T>{y.data<T>(), x.data<T>(), factor});
  });
}

}  // namespace tessera::cuda
