// Checks that a GPU could run a launch, then runs every block on the calling OS thread. On a
// captured stream, the blocks run at each launch of the graph. On a deferred stream, the blocks run
// later on a thread of the emulator (emulated/deferred.h).
#include <fmt/format.h>

#include <cstdio>
#include <map>
#include <mutex>
#include <optional>
#include <string>

#include "emulated/block_runner.h"
#include "emulated/capture.h"
#include "emulated/errors.h"
#include "emulated/launch_record.h"
#include "emulated/static_shared.h"

namespace emulated {

namespace {

// The limit on each kernel's dynamic shared memory, in bytes: the value that cudaFuncSetAttribute
// has set, or else 48 KiB minus the kernel's static shared memory.
class SharedLimits {
 public:
  void set(const void* kernel, size_t bytes) {
    const std::lock_guard lock(mutex_);
    limits_[kernel] = bytes;
  }
  size_t of(const void* kernel, size_t static_bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = limits_.find(kernel);
    return found == limits_.end() ? default_shared_bytes - static_bytes : found->second;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, size_t> limits_;
};

SharedLimits& shared_limits() {
  static SharedLimits limits;
  return limits;
}

cudaError_t check_shape(const Launch& launch) {
  const dim3 grid = launch.grid;
  const dim3 block = launch.block;
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const auto refuse = [&](const std::string& why) {
    return failed(cudaErrorInvalidConfiguration,
                  fmt::format("grid ({}, {}, {}), block ({}, {}, {}): {}", grid.x, grid.y, grid.z,
                              block.x, block.y, block.z, why));
  };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return refuse("the grid has no blocks");
  if (threads == 0) return refuse("the block has no threads");
  if (grid.x > 0x7FFFFFFFu || grid.y > 65535 || grid.z > 65535) {
    return refuse("a grid has at most 2147483647, 65535 and 65535 blocks in x, y and z");
  }
  if (uint64_t{grid.x} * grid.y * grid.z >> 32 != 0) {
    return refuse("the emulation runs fewer than 2^32 blocks");
  }
  if (block.z > 64) return refuse("a block has at most 64 threads in z");
  if (threads > max_block_threads || block.x > max_block_threads || block.y > max_block_threads) {
    return refuse(fmt::format("a block has at most {} threads", max_block_threads));
  }
  return cudaSuccess;
}

/// Finds the bytes of the kernel's static shared memory, which nvcc limits to 48 KiB.
cudaError_t find_static_shared(const void* kernel, size_t& bytes) {
  const std::optional<size_t> found = static_shared_bytes(kernel);
  if (!found) {
    return failed(cudaErrorInvalidDeviceFunction,
                  "the program has no symbol of the kernel, which tells the size of the kernel's "
                  "shared memory: a stripped program cannot run on the emulated device");
  }
  bytes = *found;
  if (bytes <= default_shared_bytes) return cudaSuccess;
  return failed(cudaErrorInvalidDeviceFunction,
                fmt::format("the kernel declares {} bytes of shared memory, nvcc allows {}", bytes,
                            default_shared_bytes));
}

cudaError_t check_shared(const Launch& launch) {
  size_t declared = 0;
  if (const auto error = find_static_shared(launch.kernel, declared); error != cudaSuccess) {
    return error;
  }
  const size_t limit = shared_limits().of(launch.kernel, declared);
  if (launch.shared_bytes <= limit) return cudaSuccess;
  return failed(
      cudaErrorInvalidValue,
      fmt::format("{} bytes of dynamic shared memory, but only {} are allowed besides the {} that "
                  "the kernel declares: cudaFuncSetAttribute has not been asked for more",
                  launch.shared_bytes, limit, declared));
}

cudaError_t check(const Launch& launch) {
  if (launch.kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction, "the kernel is null");
  if (BlockRunner::running() != nullptr) {
    return failed(cudaErrorNotSupported, "a kernel launches a kernel");
  }
  if (current_device() >= device_count()) return failed(cudaErrorNoDevice, "a launch");
  if (const auto error = check_shape(launch); error != cudaSuccess) return error;
  if (const auto error = check_shared(launch); error != cudaSuccess) return error;
  return check_stream_of(current_device(), launch.stream, "a launch");
}

cudaError_t run(const Launch& launch) {
  static thread_local BlockRunner runner;
  const std::string failure = runner.run(launch);
  if (failure.empty()) return cudaSuccess;
  std::fprintf(stderr, "emulated CUDA: %s\n", failure.c_str());
  return failed(cudaErrorLaunchFailure, failure);
}

}  // namespace

cudaError_t launch(const Launch& launch) {
  if (const auto error = check(launch); error != cudaSuccess) return error;
  record_kernel(launch.kernel);
  if (!captured(launch.stream) && !streams_are_deferred()) {
    count_launch();
    return run_now(Kind::device, [&] { return run(launch); });
  }
  const std::shared_ptr<const void> call = launch.kept(launch.call);
  Launch later = launch;
  later.call = call.get();
  return enqueue(launch.stream, [later, call] { return run(later); });
}

cudaError_t set_function_attribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  if (kernel == nullptr) return failed(cudaErrorInvalidDeviceFunction, "the kernel is null");
  if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout) return cudaSuccess;
  size_t declared = 0;
  if (const auto error = find_static_shared(kernel, declared); error != cudaSuccess) return error;
  if (value < 0 || static_cast<size_t>(value) > max_shared_bytes - declared) {
    return failed(cudaErrorInvalidValue,
                  fmt::format("cudaFuncSetAttribute: {} bytes of dynamic shared memory, expected "
                              "at most {}: a block has {}, of which the kernel declares {}",
                              value, max_shared_bytes - declared, max_shared_bytes, declared));
  }
  shared_limits().set(kernel, static_cast<size_t>(value));
  return cudaSuccess;
}

}  // namespace emulated
