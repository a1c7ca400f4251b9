// A range on the time line of a profiler such as Nsight Systems: NVTX, in the domain "tessera".
// trace::Scope opens one. core/cuda/ has what opens it, core/no_cuda/ that there is none.
#pragma once

#include <cstdint>

namespace tessera::profiler {

/// Whether a profiler takes NVTX ranges in this process: one that does came with its start.
bool listens();

/// Ranges nest on the calling thread. `id` is shown beside the name unless it is -1.
void open_range(const char* name, int64_t id);
void close_range();

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
