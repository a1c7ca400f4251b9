// Approximate functions of one or two instructions, for kernels that round their results to 16 bits
// or that have larger errors from other causes. In a build with emulated CUDA, which runs kernels
// on the CPU, the file of this name in emulated/include replaces this file.
#pragma once

#include <cuda_runtime.h>

namespace tessera::cuda {

/// Returns 2^x with a relative error of at most 2^-22. Takes one instruction, while exp2f takes
/// four. Subnormal results become zero.
__device__ inline float exp2_approximate(float x) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(result) : "f"(x));
  return result;
}

/// Returns a / b without the branch of an exact division. The error is at most two units in the
/// last place if |b| is from 2^-126 to 2^126. If |b| is larger, the result is zero, or NaN if a is
/// infinite or NaN.
__device__ inline float divide_approximate(float a, float b) { return __fdividef(a, b); }

}  // namespace tessera::cuda
