#include "core/context.h"

#include <omp.h>

namespace tessera {
namespace {
int process_threads = 1;
thread_local int override_threads = 0;
}  // namespace

Context current_context(Device device) { return Context{device, nullptr}; }

void set_thread_count(int threads) {
  TESSERA_CHECK(threads >= 1, "set_thread_count: {} threads", threads);
  process_threads = threads;
  omp_set_num_threads(threads);
}

int thread_count() { return override_threads > 0 ? override_threads : process_threads; }

ThreadCountScope::ThreadCountScope(int threads) : before_(override_threads) {
  override_threads = threads;
}

ThreadCountScope::~ThreadCountScope() { override_threads = before_; }

}  // namespace tessera
