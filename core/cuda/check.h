// Turns a CUDA call that failed into an exception that keeps the text of the call:
//   TESSERA_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
#pragma once

#include <cuda_runtime.h>

namespace tessera {
struct Context;
}

namespace tessera::cuda {

/// Throws Error for anything but success, with the call, CUDA's name of the error and its sentence.
void check(cudaError_t error, const char* call);

/// Follows what puts work on the context's stream. Where tests share memory with the device, waits
/// for its end. Throws, with `name`, in a graph's capture that the stream is not part of.
void finish_call(const Context& context, const char* name);

}  // namespace tessera::cuda

#define TESSERA_CUDA(call) ::tessera::cuda::check((call), #call)
