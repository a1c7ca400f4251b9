// Where the CPU's blocks of memory come from: ranges of pages of the system, cut into blocks. What
// is given back is kept for the next block, joined with the free memory beside it, because the
// first touch of fresh pages costs more than most kernels (docs/memory.md).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace tessera {

/// Safe to use from any thread.
class Heap {
 public:
  /// Blocks are aligned to `unit` bytes, a power of two of 64 to 4096, and are multiples of it.
  explicit Heap(int64_t unit) : unit_(unit) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// What a block of `bytes`, above 0, takes of the heap.
  int64_t block_bytes(int64_t bytes) const;
  /// An uninitialised block, of so many block_bytes(); nullptr where the system has no more, after
  /// all free pages were handed back to it.
  void* take(int64_t block_bytes);
  /// Allocates nothing: destructors call it.
  void give(void* data, int64_t block_bytes) noexcept;

  /// Pages that no block lies on go back to the system, and what was held at most is forgotten.
  void release();

  /// Bytes of pages that are held: of blocks, and free ones.
  int64_t held_bytes() const;
  /// The most that held_bytes() has been.
  int64_t peak_held_bytes() const;
  /// Bounds held_bytes(), for what the blocks had at most at once until now: a quarter more, and a
  /// huge page. Where a unit is less than a page, free parts of pages may come on top.
  int64_t most_held_bytes() const;

 private:
  struct Range {
    char* begin;
    char* end;
    int64_t bytes() const { return end - begin; }
  };

  int64_t most_held() const;
  std::vector<Range>::iterator best_fit(int64_t bytes);
  bool grow(int64_t bytes);
  void make_room(int64_t bytes);
  bool map_elsewhere(int64_t bytes);
  bool add_pages(char* begin, int64_t bytes, const char* wanted);
  void trim(int64_t excess, int64_t page);
  void add_free(Range range) noexcept;

  const int64_t unit_;
  mutable std::mutex mutex_;
  // In order of addresses, never two that touch. Has room for one more a block, for give().
  std::vector<Range> free_;
  int64_t blocks_ = 0;
  int64_t live_bytes_ = 0;  // of blocks
  int64_t peak_bytes_ = 0;  // of blocks, at most
  int64_t held_bytes_ = 0;
  int64_t peak_held_bytes_ = 0;
  char* edge_ = nullptr;  // where the newest range of pages begins; more are put in front of it
};

}  // namespace tessera
