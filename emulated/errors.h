// How runtime calls report errors.
#pragma once

#include <string>

#include "emulated/runtime_api.h"

namespace emulated {

/// Makes `error` the calling OS thread's last one, with `why` as the reason that cudaGetErrorString
/// gives, and returns it.
cudaError_t failed(cudaError_t error, const std::string& why);

/// The device that the calling OS thread has set.
int current_device();
int device_count();

/// Returns cudaSuccess if the stream exists, as the null stream always does.
cudaError_t check_stream(cudaStream_t stream, const char* call);
/// Like check_stream, and the stream must have been created on `device`.
cudaError_t check_stream_of(int device, cudaStream_t stream, const char* call);

}  // namespace emulated
