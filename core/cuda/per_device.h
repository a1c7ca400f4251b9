// Keeps one handle of a GPU library, such as cuBLASLt or cuDNN, for each device.
#pragma once

#include <map>
#include <memory>
#include <mutex>

#include "core/cuda/check.h"
#include "core/cuda/graph.h"
#include "core/error.h"

namespace tessera::cuda {

/// Returns the Library of a device, and makes it at the first call. A first call during the capture
/// of a graph, or on a thread that uses another device, throws an error that names the library
/// (`name`) and the operation (`called`). A Library is never destroyed, because CUDA's driver may
/// already have shut down after main.
template <class Library>
Library& one_per_device(int device, const char* name, const char* called) {
  static std::mutex mutex;
  static auto* const libraries = new std::map<int, std::unique_ptr<Library>>;
  const std::lock_guard lock(mutex);
  std::unique_ptr<Library>& library = (*libraries)[device];
  if (!library) {
    TESSERA_CHECK(running_capture() == nullptr,
                  "{}: the first {} on device {} is in the capture of a graph; run the "
                  "captured code once before the capture",
                  name, called, device);
    int current = 0;
    TESSERA_CUDA(cudaGetDevice(&current));
    // The library's handle would belong to the thread's device.
    TESSERA_CHECK(device == current,
                  "{}: the first {} on device {} is on a thread that uses device {}; call "
                  "cuda::use_device({}) first",
                  name, called, device, current, device);
    library = std::make_unique<Library>();
  }
  return *library;
}

}  // namespace tessera::cuda
