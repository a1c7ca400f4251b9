#include "core/context.h"

#include <atomic>

#include <omp.h>

namespace tessera {
namespace {
std::atomic<int> process_threads = 1;  // communication threads read it too
thread_local int override_threads = 0;
}  // namespace

Context current_context(Device device) { return Context{device, nullptr}; }

void set_thread_count(int threads) {
  TESSERA_CHECK(threads >= 1, "set_thread_count: {} threads", threads);
  process_threads = threads;
  omp_set_num_threads(threads);
}

int thread_count() { return override_threads > 0 ? override_threads : process_threads.load(); }

ThreadCountScope::ThreadCountScope(int threads) : before_(override_threads) {
  TESSERA_CHECK(threads >= 1, "ThreadCountScope: {} threads", threads);
  override_threads = threads;
}

ThreadCountScope::~ThreadCountScope() { override_threads = before_; }

}  // namespace tessera
