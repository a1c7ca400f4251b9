#include "emulated/arena.h"

#include <sanitizer/asan_interface.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "emulated/environment.h"

namespace emulated {

namespace {

constexpr size_t address_bytes = size_t{64} << 30;  // reserved addresses, not allocated memory
constexpr size_t alignment = 256;                   // CUDA guarantees at least this alignment
constexpr size_t gap_bytes = 256;  // after each block, so that the address sanitizer sees overruns
// mprotect() takes time for each page. With huge pages, the arena has few pages.
constexpr size_t huge_page_bytes = size_t{2} << 20;

size_t rounded_up(size_t bytes, size_t unit) { return (bytes + unit - 1) / unit * unit; }

class Arena {
 public:
  Arena() : protects_(number_of("TESSERA_EMULATED_PROTECT", 1, 0, 1) == 1) {
    void* const addresses =
        mmap(nullptr, address_bytes + huge_page_bytes, PROT_NONE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (addresses == MAP_FAILED) throw std::runtime_error("emulated CUDA: no addresses are left");
    begin_ = rounded_up(reinterpret_cast<uintptr_t>(addresses), huge_page_bytes);
    (void)madvise(at(0), address_bytes, MADV_HUGEPAGE);
  }

  void* take(size_t bytes) {
    const size_t needed = rounded_up(bytes, alignment) + gap_bytes;
    const std::lock_guard lock(mutex_);
    auto found = find(needed);
    if (found == free_.end()) {
      if (!grow(needed)) return nullptr;
      found = find(needed);
    }
    const auto [offset, size] = *found;
    free_.erase(found);
    if (size > needed) free_[offset + needed] = size - needed;
    next_ = offset + needed;
    ASAN_UNPOISON_MEMORY_REGION(at(offset), bytes);
    return at(offset);
  }

  void give(void* memory, size_t bytes) {
    ASAN_POISON_MEMORY_REGION(memory, bytes);
    const std::lock_guard lock(mutex_);
    size_t offset = reinterpret_cast<uintptr_t>(memory) - begin_;
    size_t size = rounded_up(bytes, alignment) + gap_bytes;
    release_pages(offset, offset + size);
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && after->first == offset + size) {
      size += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second == offset) {
        offset = before->first;
        size += before->second;
        free_.erase(before);
      }
    }
    free_[offset] = size;
  }

  void begin_access() {
    const std::lock_guard lock(mutex_);
    if (users_++ == 0 && protects_) protect(0, end_, PROT_READ | PROT_WRITE);
  }
  void end_access() {
    const std::lock_guard lock(mutex_);
    if (--users_ > 0 || !protects_) return;
    protect(0, end_, PROT_NONE);
    install_fault_handler();
  }

 private:
  using Ranges = std::map<size_t, size_t>;  // sizes by offset

  void* at(size_t offset) const { return reinterpret_cast<void*>(begin_ + offset); }

  void protect(size_t begin, size_t end, int protection) {
    if (begin == end || mprotect(at(begin), end - begin, protection) == 0) return;
    std::perror("emulated CUDA: mprotect of device memory");
    std::abort();
  }

  /// Returns the first free range of at least `bytes` after the latest allocation. If there is
  /// none, returns the first such range from the beginning of the arena. So freed memory is reused
  /// late, and tests detect code that still uses freed memory.
  Ranges::iterator find(size_t bytes) {
    const auto fits = [&](const auto& range) { return range.second >= bytes; };
    const auto middle = free_.lower_bound(next_);
    const auto found = std::find_if(middle, free_.end(), fits);
    if (found != free_.end()) return found;
    const auto earlier = std::find_if(free_.begin(), middle, fits);
    return earlier == middle ? free_.end() : earlier;
  }

  bool grow(size_t bytes) {
    if (bytes > address_bytes - end_) return false;
    const size_t begin = end_;
    end_ = std::min(address_bytes, rounded_up(end_ + bytes, huge_page_bytes));
    if (!protects_ || users_ > 0) protect(begin, end_, PROT_READ | PROT_WRITE);
    ASAN_POISON_MEMORY_REGION(at(begin), end_ - begin);
    const auto last = free_.empty() ? free_.end() : std::prev(free_.end());
    if (last != free_.end() && last->first + last->second == begin) {
      last->second += end_ - begin;
    } else {
      free_[begin] = end_ - begin;
    }
    return true;
  }

  /// Returns the pages of a large block to the system, so that the process keeps little unused
  /// memory. Keeps the pages of a small block, because a later allocation can reuse them, and fresh
  /// pages cost time.
  void release_pages(size_t begin, size_t end) {
    if (end - begin < 16 * huge_page_bytes) return;
    begin = rounded_up(begin, huge_page_bytes);
    end = end / huge_page_bytes * huge_page_bytes;
    if (begin < end) (void)madvise(at(begin), end - begin, MADV_DONTNEED);
  }

  static void install_fault_handler();
  static void on_fault(int signal, siginfo_t* info, void* context);

  const bool protects_;
  uintptr_t begin_ = 0;
  std::mutex mutex_;
  size_t end_ = 0;   // the end of the part of the arena that has been used so far
  size_t next_ = 0;  // the offset at which the latest allocation ends
  int users_ = 0;
  Ranges free_;
};

// Never destroyed, because objects of static lifetime free their memory after main.
Arena& arena() {
  static auto& one = *new Arena;
  return one;
}

struct sigaction action_before = {};

// Installs on_fault. Called after each use of the device, because test frameworks install handlers
// of their own and restore old ones.
void Arena::install_fault_handler() {
  struct sigaction action = {};
  if (sigaction(SIGSEGV, nullptr, &action) != 0 || action.sa_sigaction == on_fault) return;
  action_before = std::exchange(action, {});
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  (void)sigaction(SIGSEGV, &action, nullptr);
}

// Prints an error if the address is in the arena, and restores the earlier action. After the
// return, the access faults again, and the earlier action ends the process. A signal handler may
// call only a few functions; write() is one of them.
void Arena::on_fault(int, siginfo_t* info, void*) {
  const auto address = reinterpret_cast<uintptr_t>(info->si_addr);
  if (address - arena().begin_ < address_bytes) {
    constexpr std::string_view message =
        "emulated CUDA: host code has accessed device memory, or an address reserved for it\n";
    const auto written = write(STDERR_FILENO, message.data(), message.size());
    (void)written;
  }
  // The earlier handler may restore on_fault and raise the signal again. To end the process even
  // then, the second call of on_fault restores the default action instead of the earlier handler.
  static volatile sig_atomic_t faults = 0;
  if (faults == 1) action_before = {};
  faults = 1;
  (void)sigaction(SIGSEGV, &action_before, nullptr);
}

}  // namespace

void* take_device_memory(size_t bytes) { return arena().take(bytes); }
void give_device_memory(void* memory, size_t bytes) { arena().give(memory, bytes); }

DeviceAccess::DeviceAccess() { arena().begin_access(); }
DeviceAccess::~DeviceAccess() { arena().end_access(); }

}  // namespace emulated
