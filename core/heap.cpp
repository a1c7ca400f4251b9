#include "core/heap.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <utility>

#include <sys/mman.h>

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(begin, bytes) ((void)0)
#define ASAN_UNPOISON_MEMORY_REGION(begin, bytes) ((void)0)
#endif

namespace tessera {
namespace {

constexpr int64_t small_page = 4096;
constexpr int64_t huge_page = int64_t{2} << 20;

// With the address sanitizer, each block ends with a poisoned gap. The sanitizer reports accesses
// to the gap.
#ifdef __SANITIZE_ADDRESS__
constexpr int64_t gap = 64;
#else
constexpr int64_t gap = 0;
#endif

int64_t round_up(int64_t bytes, int64_t page) { return (bytes + page - 1) / page * page; }
char* round_up(char* address, int64_t page) {
  return address + (-reinterpret_cast<uintptr_t>(address) & static_cast<uintptr_t>(page - 1));
}
char* round_down(char* address, int64_t page) {
  return address - (reinterpret_cast<uintptr_t>(address) & static_cast<uintptr_t>(page - 1));
}

char* map_pages(char* wanted, int64_t bytes, int flags) {
  void* data = mmap(wanted, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<char*>(data);
}

bool unmap_pages(char* begin, char* end) {
  return begin == end || munmap(begin, static_cast<size_t>(end - begin)) == 0;
}

}  // namespace

int64_t Heap::block_bytes(int64_t bytes) const { return round_up(bytes + gap, unit_); }

void* Heap::take(int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  // Reserves capacity for every range that give() may add later, because give() must not allocate.
  const auto room = free_.size() + static_cast<size_t>(blocks_) + 2;
  if (free_.capacity() < room) free_.reserve(2 * room);
  // grow() limits held_bytes_ by most_held(), which depends on the peak. So the peak is raised
  // before grow(). If grow() fails, the old peak is restored.
  live_bytes_ += bytes;
  const int64_t peak_before = std::exchange(peak_bytes_, std::max(peak_bytes_, live_bytes_));
  auto found = best_fit(bytes);
  if (found == free_.end()) {
    (void)grow(bytes);
    // Even a grow() that fails may have handed free pages back, so `found` is no longer valid.
    found = best_fit(bytes);
  }
  if (found == free_.end()) {
    live_bytes_ -= bytes;
    peak_bytes_ = peak_before;
    return nullptr;
  }
  ++blocks_;
  // The block is cut from the high end of the range, so the rest stays free at the low end. grow()
  // maps new pages directly below the newest pages if it can. The new pages then join the free
  // rest, so that no gap stays between blocks that are taken one after another.
  char* data = found->end -= bytes;
  if (found->begin == found->end) free_.erase(found);
  ASAN_UNPOISON_MEMORY_REGION(data, static_cast<size_t>(bytes - gap));
  return data;
}

void Heap::give(void* data, int64_t bytes) noexcept {
  const std::scoped_lock lock(mutex_);
  char* begin = static_cast<char*>(data);
  ASAN_POISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
  add_free({begin, begin + bytes});
  --blocks_;
  live_bytes_ -= bytes;
}

void Heap::release() {
  const std::scoped_lock lock(mutex_);
  trim(held_bytes_, small_page);
  peak_bytes_ = live_bytes_;
}

int64_t Heap::held_bytes() const {
  const std::scoped_lock lock(mutex_);
  return held_bytes_;
}

int64_t Heap::peak_held_bytes() const {
  const std::scoped_lock lock(mutex_);
  return peak_held_bytes_;
}

int64_t Heap::most_held_bytes() const {
  const std::scoped_lock lock(mutex_);
  return most_held();
}

int64_t Heap::most_held() const { return peak_bytes_ + peak_bytes_ / 4 + huge_page; }

/// Returns the smallest free range that is large enough, so that large ranges stay whole for large
/// blocks. Returns free_.end() if no range is large enough.
std::vector<Heap::Range>::iterator Heap::best_fit(int64_t bytes) {
  auto best = free_.end();
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    if (range->bytes() < bytes) continue;
    if (best == free_.end() || range->bytes() < best->bytes()) best = range;
  }
  return best;
}

/// Maps pages for a block that fits into no free range. Returns false if the system has no more
/// memory.
bool Heap::grow(int64_t bytes) {
  const auto missing = [&] {
    const auto front = std::find_if(free_.begin(), free_.end(),
                                    [this](const Range& range) { return range.begin == edge_; });
    return round_up(bytes - (front == free_.end() ? 0 : front->bytes()), huge_page);
  };
  // First tries to map pages directly below the newest pages. If a free range begins at edge_, maps
  // only the bytes that this range lacks.
  if (edge_) {
    int64_t more = missing();
    make_room(more);
    // make_room may have handed back pages of the free range at edge_. Then more bytes are missing.
    while (missing() > more) {
      more = missing();
      make_room(more);
    }
    more = missing();
    const bool fits = static_cast<uint64_t>(more) < reinterpret_cast<uintptr_t>(edge_);
    if (fits && add_pages(map_pages(edge_ - more, more, MAP_FIXED_NOREPLACE), more, edge_ - more)) {
      return true;
    }
  }
  const int64_t whole = round_up(bytes, huge_page);
  make_room(whole);
  if (map_elsewhere(whole)) return true;
  trim(held_bytes_, small_page);  // the system has no more memory: hands back all free pages
  return map_elsewhere(whole);
}

/// Hands free pages back to the system until held_bytes_ + bytes is at most most_held(), or no free
/// page is left.
void Heap::make_room(int64_t bytes) {
  // Hands back whole huge pages first. If only a part of a huge page is handed back, the system
  // splits the huge page into small pages, which are slower to use.
  for (const int64_t page : {huge_page, small_page}) {
    trim(held_bytes_ + bytes - most_held(), page);
  }
}

/// Maps pages at an address that the system chooses, aligned to a huge page.
bool Heap::map_elsewhere(int64_t bytes) {
  char* unaligned = map_pages(nullptr, bytes + huge_page, 0);
  if (!unaligned) return false;
  char* begin = round_up(unaligned, huge_page);
  unmap_pages(unaligned, begin);
  unmap_pages(begin + bytes, unaligned + bytes + huge_page);
  return add_pages(begin, bytes, begin);
}

/// Adds mapped pages to the free ranges. Returns false if `begin` is null because mapping has
/// failed. If the pages do not begin at `wanted`, unmaps them and returns false. Linux before 4.17
/// may map such pages, because it ignores MAP_FIXED_NOREPLACE and takes the address as a hint.
bool Heap::add_pages(char* begin, int64_t bytes, const char* wanted) {
  if (begin != wanted) {
    if (begin) unmap_pages(begin, begin + bytes);
    return false;
  }
  // Errors are ignored: without huge pages the memory still works, but more slowly.
  (void)madvise(begin, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  held_bytes_ += bytes;
  peak_held_bytes_ = std::max(peak_held_bytes_, held_bytes_);
  edge_ = begin;
  ASAN_POISON_MEMORY_REGION(begin, static_cast<size_t>(bytes));
  add_free({begin, begin + bytes});
  return true;
}

/// Hands whole free pages of size `page` back to the system, until at least `excess` bytes are
/// handed back or no such page is left. Begins at high addresses, to keep the free range at edge_
/// for grow(): the newest pages usually have the lowest addresses.
void Heap::trim(int64_t excess, int64_t page) {
  if (excess <= 0) return;
  free_.reserve(2 * free_.size() + static_cast<size_t>(blocks_) + 2);
  for (size_t i = free_.size(); i-- > 0 && excess > 0;) {
    const Range range = free_[i];
    char* const end = round_down(range.end, page);
    char* begin = round_up(range.begin, page);
    if (begin >= end) continue;
    begin = std::max(begin, end - round_up(excess, page));
    ASAN_UNPOISON_MEMORY_REGION(begin, static_cast<size_t>(end - begin));
    // Unmapping a part of a mapping may split the mapping in two. Unmapping fails if the process
    // would then have more mappings than the system allows.
    if (!unmap_pages(begin, end)) continue;
    excess -= end - begin;
    held_bytes_ -= end - begin;
    if (begin == edge_) edge_ = end;
    const auto at = free_.erase(free_.begin() + static_cast<std::ptrdiff_t>(i));
    const auto rest = end < range.end ? free_.insert(at, {end, range.end}) : at;
    if (range.begin < begin) free_.insert(rest, {range.begin, begin});
  }
}

void Heap::add_free(Range range) noexcept {
  auto next = std::upper_bound(
      free_.begin(), free_.end(), range.begin,
      [](const char* address, const Range& other) { return address < other.begin; });
  if (next != free_.begin() && std::prev(next)->end == range.begin) {
    range.begin = std::prev(next)->begin;
    next = free_.erase(std::prev(next));
  }
  if (next != free_.end() && next->begin == range.end) {
    next->begin = range.begin;
  } else {
    free_.insert(next, range);
  }
}

}  // namespace tessera
