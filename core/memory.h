// Memory under a ledger: every allocation has a category, and the ledger knows current and peak
// requested bytes of each, counted in program order. What a step needs can so be compared, to the
// byte, with what the planner said (optim/plan/plan.h).
//
// On the CPU a heap stands behind it (core/heap.h): what is freed is kept, up to a quarter more
// than was needed at once, and handed out again, because the first touch of fresh pages costs more
// than most kernels (docs/memory.md). On CUDA it is the device's stream-ordered pool: memory
// belongs to the stream on which it was allocated, and goes back in that stream's order.
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
  checkpoint,  // what is about to be written, while the run goes on
};
inline constexpr int category_count = 7;

std::string_view category_name(Category category);

/// Current and peak requested bytes by category. One a device; safe to use from any thread.
class MemoryLedger {
 public:
  void add(Category category, int64_t bytes);
  void remove(Category category, int64_t bytes);

  int64_t current(Category category) const;
  int64_t peak(Category category) const;
  int64_t current_total() const;
  /// Peak of the sum over categories, which is at most the sum of the peaks.
  int64_t peak_total() const;
  /// Counts memory that came and went once more as `passing` has counted it from nothing.
  void add_passing(const MemoryLedger& passing);
  /// Sets every peak to its current value.
  void reset_peaks();

 private:
  mutable std::mutex mutex_;
  std::array<int64_t, category_count> current_{};
  std::array<int64_t, category_count> peak_{};
  int64_t current_total_ = 0;
  int64_t peak_total_ = 0;
};

/// Throws for a device that this build does not have.
MemoryLedger& memory_ledger(Device device = default_device());

/// A block of memory; shared by the tensors that view it, returned to the heap with the last one.
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
  int64_t block_bytes_ = 0;  // of the heap's block behind it, at least bytes_
  void* stream_ = nullptr;   // on CUDA: where it was allocated, and will be freed
  std::shared_ptr<MemoryLedger> captured_;  // of the graph that has it
  std::shared_ptr<void> adopted_;           // memory that somebody else has allocated
  Category category_;
  Device device_;
  bool pinned_;
};

/// Uninitialised, 64-byte aligned. Throws when there is not enough memory, with bytes and category.
std::shared_ptr<Storage> allocate(int64_t bytes, Category category, Device device = {});

/// The same on the host, in memory that GPUs copy from and to directly (cuda::allocate_pinned): for
/// what is long-lived, because it is not cached. Throws in a build without CUDA.
std::shared_ptr<Storage> allocate_pinned(int64_t bytes, Category category);

/// `memory` of a device, which somebody else has allocated, under the ledger: it is let go with the
/// last tensor.
std::shared_ptr<Storage> adopt(std::shared_ptr<void> memory, int64_t bytes, Category category,
                               Device device);

/// What the heap of a device in the host's memory has held of pages, at most, free ones included:
/// bounded by the most that all blocks had at once, a quarter of it, and a huge page for small and
/// large blocks each.
int64_t peak_held_bytes(Device device = {});

/// Hands free memory back to the system; for tests and for measurements of a process's size.
void release_cached_memory();

}  // namespace tessera
