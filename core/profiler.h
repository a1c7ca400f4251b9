// NVTX ranges, in the domain "tessera": named intervals on the time line of a profiler such as
// Nsight Systems. Each trace::Scope opens a range. In a build without CUDA the functions do nothing
// (core/no_cuda/profiler.cpp).
#pragma once

#include <cstdint>

namespace tessera::profiler {

/// True if an NVTX profiler was attached when the process started.
bool listens();

/// Open and close a range on the calling thread; ranges nest. `id` is shown beside the name unless
/// it is negative.
void open_range(const char* name, int64_t id);
void close_range();

/// A range that is open while the object lives.
class Range {
 public:
  Range(const char* name, int64_t id) : is_open_(listening()) {
    if (is_open_) open_range(name, id);
  }
  ~Range() {
    if (is_open_) close_range();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

 private:
  static bool listening() {
    static const bool answer = listens();
    return answer;
  }

  bool is_open_;
};

}  // namespace tessera::profiler
