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

/// Must follow every kernel launch and library call that puts work on the context's stream. If the
/// calling thread is capturing a graph, throws, with `name`, if the stream is not part of the
/// capture. Otherwise waits for the work to end if tests share memory with the device.
void finish_call(const Context& context, const char* name);

}  // namespace tessera::cuda

#define TESSERA_CUDA(call) ::tessera::cuda::check((call), #call)
