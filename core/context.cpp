#include "core/context.h"

#include <atomic>

#include <omp.h>

#include "core/cuda.h"
#include "core/run_status.h"

namespace tessera {
namespace {
std::atomic<int> process_threads = 1;  // atomic because communication threads read it too
thread_local int override_threads = 0;
std::atomic<Device> process_device = Device{};
}  // namespace

Context current_context(Device device) {
  return {device, device.is_cpu() ? nullptr : cuda::current_stream(device.index)};
}

Device default_device() { return process_device; }

void set_default_device(Device device) { process_device = device; }

void set_thread_count(int threads) {
  TESSERA_CHECK(threads >= 1, "set_thread_count: {} threads, expected at least 1", threads);
  process_threads = threads;
  publish_threads(threads);
  omp_set_num_threads(threads);
}

int thread_count() { return override_threads > 0 ? override_threads : process_threads.load(); }

ThreadCountScope::ThreadCountScope(int threads) : before_(override_threads) {
  TESSERA_CHECK(threads >= 1, "ThreadCountScope: {} threads, expected at least 1", threads);
  override_threads = threads;
}

ThreadCountScope::~ThreadCountScope() { override_threads = before_; }

}  // namespace tessera
