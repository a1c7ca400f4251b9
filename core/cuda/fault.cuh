// The function by which kernels report wrong input. core/cuda/fault.h explains how a report reaches
// the host.
//
//   if (token < 0 || token >= vocabulary) {
//     report_fault(fault, FaultKind::embedding_token, position, token, vocabulary);
//     token = 0;
//   }
#pragma once

#include <cuda_runtime.h>

#include "core/cuda/fault.h"

namespace tessera::cuda {

/// Writes a report, or ignores it while an earlier report waits for the host. The host may read
/// `complete` at any time, but the other members only after it has seen that `complete` is 1.
__device__ inline void report_fault(Fault* fault, FaultKind kind, long long position, int value,
                                    long long limit, long long low = 0) {
  if (atomicCAS(&fault->claimed, 0u, 1u) != 0u) return;
  fault->kind = kind;
  fault->position = position;
  fault->value = value;
  fault->limit = limit;
  fault->low = low;
  __threadfence_system();  // the host must see the members above before `complete`
  fault->complete = 1;
}

}  // namespace tessera::cuda
