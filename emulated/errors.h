// Reports errors of runtime calls, and checks devices and streams.
#pragma once

#include <string>

#include "emulated/runtime_api.h"

namespace emulated {

/// Records `error` as the calling OS thread's last error, with `why` as the reason that
/// cudaGetErrorString gives. Returns `error`.
cudaError_t failed(cudaError_t error, const std::string& why);

/// Returns the calling OS thread's current device: the last one that it has set, at first 0.
int current_device();
int device_count();

/// Returns cudaSuccess if the stream exists, else an error. The null stream always exists. The
/// error's reason names `call`.
cudaError_t check_stream(cudaStream_t stream, const char* call);
/// Like check_stream, but also returns an error if the stream was created on a device other than
/// `device`.
cudaError_t check_stream_of(int device, cudaStream_t stream, const char* call);

}  // namespace emulated
