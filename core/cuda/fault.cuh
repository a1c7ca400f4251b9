// What kernels call when they find their input wrong; core/cuda/fault.h tells the rest.
//
//   if (token < 0 || token >= vocabulary) {
//     report_fault(fault, FaultKind::embedding_token, position, token, vocabulary);
//     token = 0;
//   }
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/fault.h"

namespace tessera::cuda {

__device__ inline void report_fault(Fault* fault, FaultKind kind, long long position, int value,
                                    long long limit) {
  if (atomicCAS(&fault->claimed, 0u, 1u) != 0u) return;
  fault->kind = kind;
  fault->position = position;
  fault->value = value;
  fault->limit = limit;
}

}  // namespace tessera::cuda
