// Turns a failed CUDA call into an exception that contains the text of the call:
//   TESSERA_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream));
#pragma once

#include <cuda_runtime.h>

namespace tessera {
struct Context;
}

namespace tessera::cuda {

/// Throws Error with the call, CUDA's name of the error and its description, unless the call
/// succeeded.
void check(cudaError_t error, const char* call);

/// Must follow every kernel launch and library call that puts work on the context's stream. While
/// the calling thread captures a graph, throws an Error that contains `name` if the stream is not
/// part of the capture. Outside of a capture, waits for the work to end if a test has called
/// share_memory_with_host().
void finish_call(const Context& context, const char* name);

}  // namespace tessera::cuda

#define TESSERA_CUDA(call) ::tessera::cuda::check((call), #call)
