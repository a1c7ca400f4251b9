// The CPU allocator. It maps ranges of pages and cuts blocks from them. A freed block is merged
// with adjacent free memory and kept for later blocks, because the first touch of fresh pages costs
// more than most kernels (docs/memory.md).
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

namespace tessera {

/// Safe to use from any thread.
class Heap {
 public:
  /// Blocks are aligned to `unit` bytes, a power of two from 64 to 4096, and their sizes are
  /// multiples of `unit`.
  explicit Heap(int64_t unit) : unit_(unit) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  /// Returns the size of the block for a request of `bytes`, which must be above 0.
  int64_t block_bytes(int64_t bytes) const;
  /// Returns an uninitialised block of a size from block_bytes(). Returns nullptr if the system has
  /// no more memory, even after the heap has handed back all free pages.
  void* take(int64_t block_bytes);
  /// Frees a block. Allocates nothing, because destructors call this function.
  void give(void* data, int64_t block_bytes) noexcept;

  /// Hands pages without blocks back to the system. Then sets the peak bytes of the blocks to their
  /// current bytes, which lowers the bound on held_bytes().
  void release();

  /// The bytes of all pages that the heap holds, free ones included.
  int64_t held_bytes() const;
  /// The peak of held_bytes().
  int64_t peak_held_bytes() const;
  /// The bound on held_bytes(): 1.25 times the peak bytes of all blocks, plus a huge page (2 MiB).
  /// If the constructor's `unit` is less than a page, held_bytes() may exceed the bound by free
  /// parts of pages, which cannot be handed back. It may also exceed the bound if the system
  /// refuses to unmap pages.
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
  // Free memory, sorted by address; adjacent ranges are merged. Freeing a block adds at most one
  // range. The vector always has capacity for one more range per block in use, so give() never
  // allocates.
  std::vector<Range> free_;
  int64_t blocks_ = 0;
  int64_t live_bytes_ = 0;  // total size of all blocks
  int64_t peak_bytes_ = 0;  // peak of live_bytes_
  int64_t held_bytes_ = 0;
  int64_t peak_held_bytes_ = 0;
  char* edge_ = nullptr;  // where the newest pages begin; grow() maps more pages directly below
};

}  // namespace tessera
