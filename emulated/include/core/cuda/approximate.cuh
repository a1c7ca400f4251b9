// The emulated twin of the CUDA file core/cuda/approximate.cuh. As on a GPU, exp2_approximate
// returns zero instead of a subnormal result, and divide_approximate returns zero for a finite
// dividend if the divisor's magnitude is above 2^126. Other results have the precision of the
// host's functions.
#pragma once

#include <cuda_runtime.h>

#include <cmath>

namespace tessera::cuda {

__device__ inline float exp2_approximate(float x) {
  const float result = std::exp2(x);
  return result < 0x1p-126f ? 0.0f : result;
}

__device__ inline float divide_approximate(float a, float b) {
  return std::fabs(b) > 0x1p126f ? a * 0.0f : a / b;
}

}  // namespace tessera::cuda
