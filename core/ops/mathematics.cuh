// The functions that the elementwise expressions use (core/ops/expressions.h), on CUDA.
#pragma once

#include "core/cuda/kernel.cuh"
#include "core/ops/expressions.h"

namespace tessera::cuda {

struct Mathematics {
  TESSERA_BOTH static float exp(float x) { return expf(x); }
  TESSERA_BOTH static float log(float x) { return logf(x); }
  TESSERA_BOTH static float tanh(float x) { return tanhf(x); }
  TESSERA_BOTH static float sqrt(float x) { return sqrtf(x); }
  TESSERA_BOTH static float pow(float x, float exponent) { return powf(x, exponent); }
};

}  // namespace tessera::cuda
