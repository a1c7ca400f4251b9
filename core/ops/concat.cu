// The copies of concat and split on CUDA, with one thread for each element.
#include "core/cuda/kernel.cuh"
#include "core/ops/concat.h"

namespace tessera::cuda {

namespace {

constexpr int threads = 256;

template <class T>
__global__ void __launch_bounds__(threads) copy_rows_kernel(T* y, const T* x, RowCopy copy) {
  const int64_t element = int64_t{blockIdx.x} * threads + threadIdx.x;
  const int64_t row = element / copy.width;
  if (row >= copy.rows) return;
  const int64_t column = element % copy.width;
  y[copy.to + row * copy.to_stride + column] = x[copy.from + row * copy.from_stride + column];
}

}  // namespace

void copy_rows(const Context& context, const Tensor& y, const Tensor& x, const RowCopy& copy) {
  const int64_t elements = copy.rows * copy.width;
  if (elements == 0) return;
  const auto start = [&]<class T>(T* to) {
    launch(context, "copy_rows", {blocks_for(elements, threads), threads}, copy_rows_kernel<T>, to,
           static_cast<const T*>(x.raw()), copy);
  };
  switch (dtype_size(x.dtype())) {
    case 1: return start(static_cast<uint8_t*>(y.raw()));
    case 2: return start(static_cast<uint16_t*>(y.raw()));
    case 4: return start(static_cast<uint32_t*>(y.raw()));
    case 8: return start(static_cast<uint64_t*>(y.raw()));
  }
}

}  // namespace tessera::cuda
