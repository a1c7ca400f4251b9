// block_square_sums on CUDA. CUDA and the CPU add in the same order, so their results have the same
// bits. Half a warp sums a block of 256 elements. Lane l adds the squares of elements l, l + 16 and
// so on. Then the lanes are added pairwise. Products are exact in fp64, so fusing a product into an
// addition changes no bit.
#include <cmath>

#include "core/cuda/kernel.cuh"
#include "optim/kernels/square_sums.h"

namespace tessera::cuda {

namespace {

constexpr int lanes = 16;
constexpr int block_elements = 256;
constexpr int threads = 256;
constexpr int groups = threads / lanes;  // blocks of elements per thread block

template <class T>
__global__ void __launch_bounds__(threads)
    square_sums_kernel(double* sums, T* x, int64_t elements, int64_t blocks) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const int64_t block = int64_t{blockIdx.x} * groups + threadIdx.x / lanes;
  const int64_t first = block * block_elements + lane;
  float value[block_elements / lanes];  // all loads are in flight before the first addition
  for (int i = 0; i < block_elements / lanes; ++i) {
    const int64_t at = first + i * lanes;
    value[i] = at < elements ? float(x[at]) : 0.0f;
  }
  for (int i = 0; i < block_elements / lanes; ++i) {
    const int64_t at = first + i * lanes;
    if (value[i] == 0.0f && std::signbit(value[i]) && at < elements) x[at] = T(0.0f);
  }
  double sum = 0;
  for (const float v : value) sum += double(v) * double(v);
  // Only lane 0 of each half warp gets the half warp's sum. Other lanes may also add values from
  // outside the half warp, but these values never reach lane 0.
  for (int width = lanes / 2; width > 0; width /= 2) {
    sum += __shfl_down_sync(whole_warp, sum, width);
  }
  if (lane == 0 && block < blocks) sums[block] = sum;
}

}  // namespace

void block_square_sums(const Context& context, std::span<double> sums, const Tensor& x) {
  const int64_t elements = x.elements();
  const int64_t blocks = (elements + block_elements - 1) / block_elements;
  TESSERA_CHECK(static_cast<int64_t>(sums.size()) == blocks,
                "block_square_sums: room for {} sums, expected {}", sums.size(), blocks);
  if (blocks == 0) return;
  visit_float(x.dtype(), "block_square_sums", [&]<class T>() {
    launch(context, "block_square_sums", {blocks_for(blocks, groups), threads},
           square_sums_kernel<T>, sums.data(), x.data<T>(), elements, blocks);
  });
}

}  // namespace tessera::cuda
