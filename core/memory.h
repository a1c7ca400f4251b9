// Memory with a ledger. Every allocation has a category. For each category, the ledger counts the
// requested bytes, current and peak. When the program frees memory, the ledger immediately
// subtracts the bytes, even if a device frees the memory later. The counts depend neither on the
// allocator nor on the device's timing, so the counts of a training step can be compared, to the
// byte, with the planner's prediction (optim/plan/plan.h).
//
// On the CPU, memory comes from heaps (core/heap.h). A heap keeps freed memory for later blocks,
// because the first touch of fresh pages costs more than most kernels (docs/memory.md). A heap
// holds at most about 1.25 times the peak bytes of its blocks, plus 2 MiB. On CUDA, memory comes
// from the device's stream-ordered pool: a block belongs to the stream on which it was allocated,
// and is freed in that stream's order.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string_view>

#include "core/device.h"

namespace tessera {

enum class Category : uint8_t {
  parameters,
  gradients,
  optimizer_state,
  activations,
  communication,
  workspace,
  checkpoint,  // copies of the training state, to be written to a checkpoint while the run goes on
};
inline constexpr int category_count = 7;

std::string_view category_name(Category category);

/// Current and peak requested bytes by category. Each device has a ledger. Safe to use from any
/// thread.
class MemoryLedger {
 public:
  void add(Category category, int64_t bytes);
  void remove(Category category, int64_t bytes);

  int64_t current(Category category) const;
  int64_t peak(Category category) const;
  int64_t current_total() const;
  /// Peak of the bytes of all categories together. At most the sum of the categories' peaks.
  int64_t peak_total() const;
  /// Counts the memory that a launch of a CUDA graph allocates and frees again. `passing` is the
  /// ledger of the graph's capture. The peak of each category becomes at least its current bytes
  /// plus its peak in `passing`. The same holds for the bytes of all categories together.
  void add_passing(const MemoryLedger& passing);
  /// Lowers every peak to the current bytes.
  void reset_peaks();

 private:
  mutable std::mutex mutex_;
  std::array<int64_t, category_count> current_{};
  std::array<int64_t, category_count> peak_{};
  int64_t current_total_ = 0;
  int64_t peak_total_ = 0;
};

/// Returns the ledger of a device. Throws if there is no such device.
MemoryLedger& memory_ledger(Device device = default_device());

/// A block of memory, shared by the tensors that view it and freed with the last of them.
class Storage {
 public:
  Storage(int64_t bytes, Category category, Device device, bool pinned = false);
  Storage(std::shared_ptr<void> memory, int64_t bytes, Category category, Device device);
  ~Storage();
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;

  void* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  Category category() const { return category_; }
  Device device() const { return device_; }

 private:
  void* data_ = nullptr;
  int64_t bytes_ = 0;
  int64_t block_bytes_ = 0;  // size of the heap's block, at least bytes_; 0 without a heap
  void* stream_ = nullptr;   // on CUDA: the stream that orders the allocation and the free
  std::shared_ptr<MemoryLedger> captured_;  // ledger of the capture that allocated data_, if any
  std::shared_ptr<void> adopted_;           // memory that was allocated elsewhere
  Category category_;
  Device device_;
  bool pinned_;
};

/// Allocates uninitialised memory, aligned to at least 64 bytes. If there is not enough memory,
/// throws an Error with the bytes and the category.
std::shared_ptr<Storage> allocate(int64_t bytes, Category category, Device device = {});

/// Allocates pinned host memory, which GPUs copy from and to directly (cuda::allocate_pinned).
/// Freed pinned memory is not cached, so use this for long-lived tensors only. Throws if there is
/// not enough memory. In a build without CUDA, throws unless `bytes` is 0.
std::shared_ptr<Storage> allocate_pinned(int64_t bytes, Category category);

/// Wraps memory that was allocated elsewhere on `device`, and counts it in the device's ledger.
/// `memory` is released with the last tensor that views it.
std::shared_ptr<Storage> adopt(std::shared_ptr<void> memory, int64_t bytes, Category category,
                               Device device);

/// Returns how many bytes of pages the heaps of a CPU device have held at most, free pages
/// included. The device has one heap for small blocks and one for large blocks, and the result adds
/// their two peaks. Each peak is at most about 1.25 times the peak bytes of the heap's blocks, plus
/// a huge page.
int64_t peak_held_bytes(Device device = {});

/// Hands free memory back to the system; for tests and for measurements of a process's size.
void release_cached_memory();

}  // namespace tessera
