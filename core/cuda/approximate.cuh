// Functions of one or two instructions for kernels whose results are rounded to 16 bits, or whose
// other errors are larger. emulated/include has a twin of this file for the emulated GPU.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// 2^x within a relative error of 2^-22, in one instruction where exp2f takes four. Subnormal
/// results become zero.
__device__ inline float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

/// a / b within two units of the last place, without the branch of an exact division. For b from
/// 2^126 on the result is zero.
__device__ inline float divide_approximate(float a, float b) { return __fdividef(a, b); }

}  // namespace tessera::cuda
