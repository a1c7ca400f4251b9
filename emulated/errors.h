// How a runtime call says what it found wrong.
#pragma once

#include <string>

#include "emulated/runtime_api.h"

namespace emulated {

/// Makes `error` the calling OS thread's last one, with the reason that cudaGetErrorString gives,
/// and returns it.
cudaError_t failed(cudaError_t error, const std::string& why);

/// Of the calling OS thread.
int current_device();
int device_count();

/// Success for a stream that exists, which the null stream does.
cudaError_t check_stream(cudaStream_t stream, const char* call);
/// It must also have been created on that device.
cudaError_t check_stream_of(int device, cudaStream_t stream, const char* call);

}  // namespace emulated
