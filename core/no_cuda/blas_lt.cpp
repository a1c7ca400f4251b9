// core/cuda/blas_lt.h in a build without CUDA: what may be asked before there is a device.
#include "core/cuda/blas_lt.h"

#include "core/cuda.h"
#include "core/error.h"

namespace tessera::cuda {

int64_t workspace_bytes(const Context&, const LtArgs&) { fail("cublasLt: {}", unusable()); }

}  // namespace tessera::cuda
