// The functions that the elementwise expressions use (core/ops/expressions.h), on the CPU.
#pragma once

#include <cmath>

#include "core/cpu/vector_math.h"

namespace tessera::cpu {

struct Mathematics {
  static float exp(float x) { return exp_f32(x); }
  static float log(float x) { return log_f32(x); }
  static float tanh(float x) { return tanh_f32(x); }
  static float sqrt(float x) { return std::sqrt(x); }
  static float pow(float x, float exponent) { return std::pow(x, exponent); }
};

}  // namespace tessera::cpu
