#include "core/memory.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <map>
#include <new>
#include <span>
#include <vector>

#include <sys/mman.h>

#include "core/cuda.h"
#include "core/error.h"

namespace tessera {
namespace {

constexpr int64_t alignment = 64;
constexpr int64_t huge_page = int64_t{2} << 20;

// Sizes are rounded so that blocks find each other again: small ones to a cache line, middle ones
// to an eighth of their power of two, large ones to huge pages.
int64_t rounded(int64_t bytes) {
  if (bytes >= huge_page) return (bytes + huge_page - 1) / huge_page * huge_page;
  if (bytes <= 1024) return std::max(alignment, (bytes + alignment - 1) / alignment * alignment);
  const auto power = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  const int64_t unit = std::max(alignment, power / 8);
  return (bytes + unit - 1) / unit * unit;
}

void* system_allocate(int64_t bytes) {
  const bool large = bytes >= huge_page;
  void* data = std::aligned_alloc(static_cast<size_t>(large ? huge_page : alignment),
                                  static_cast<size_t>(bytes));
  if (data != nullptr && large) {
    // Advice only: where huge pages are off the block works as well, more slowly.
    (void)madvise(data, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  }
  return data;
}

// Freed blocks by size. A block is reused for a request that it exceeds by at most an eighth, so
// that what the process holds stays near the ledger's peak.
class Cache {
 public:
  void* take(int64_t bytes, int64_t& block_bytes) {
    const std::scoped_lock lock(mutex_);
    const auto found = free_.lower_bound(bytes);
    if (found != free_.end() && found->first - bytes <= bytes / 8) {
      block_bytes = found->first;
      void* data = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) free_.erase(found);
      return data;
    }
    block_bytes = bytes;
    void* data = system_allocate(bytes);
    if (data == nullptr) {
      release_locked();
      data = system_allocate(bytes);
    }
    return data;
  }

  void give(void* data, int64_t block_bytes) {
    const std::scoped_lock lock(mutex_);
    free_[block_bytes].push_back(data);
  }

  void release() {
    const std::scoped_lock lock(mutex_);
    release_locked();
  }

 private:
  void release_locked() {
    for (auto& [bytes, blocks] : free_) {
      for (void* block : blocks) std::free(block);
    }
    free_.clear();
  }

  std::mutex mutex_;
  std::map<int64_t, std::vector<void*>> free_;
};

struct DeviceMemory {
  MemoryLedger ledger;
  Cache cache;  // unused on CUDA
};

// Of the host and of the second device in its memory, and of GPUs. Never destroyed: tensors of
// static lifetime give their memory back after main.
struct AllMemory {
  std::array<DeviceMemory, 2> host;
  std::vector<DeviceMemory> cuda{static_cast<size_t>(cuda::device_count())};
};
AllMemory& all_memory() {
  static auto* instance = new AllMemory;
  return *instance;
}

DeviceMemory& memory_of(Device device) {
  AllMemory& all = all_memory();
  const std::span<DeviceMemory> devices =
      device.is_cpu() ? std::span<DeviceMemory>(all.host) : std::span<DeviceMemory>(all.cuda);
  TESSERA_CHECK(0 <= device.index && device.index < std::ssize(devices),
                "memory: there is no device {}{}{}", device.to_string(),
                device.is_cpu() ? "" : ": ", device.is_cpu() ? "" : cuda::unusable());
  return devices[static_cast<size_t>(device.index)];
}

}  // namespace

std::string_view category_name(Category category) {
  constexpr std::string_view names[] = {"parameters",  "gradients",     "optimizer_state",
                                        "activations", "communication", "workspace"};
  return names[static_cast<size_t>(category)];
}

void MemoryLedger::add(Category category, int64_t bytes) {
  const auto index = static_cast<size_t>(category);
  const std::scoped_lock lock(mutex_);
  current_[index] += bytes;
  current_total_ += bytes;
  peak_[index] = std::max(peak_[index], current_[index]);
  peak_total_ = std::max(peak_total_, current_total_);
}

void MemoryLedger::remove(Category category, int64_t bytes) {
  const std::scoped_lock lock(mutex_);
  current_[static_cast<size_t>(category)] -= bytes;
  current_total_ -= bytes;
}

int64_t MemoryLedger::current(Category category) const {
  const std::scoped_lock lock(mutex_);
  return current_[static_cast<size_t>(category)];
}

int64_t MemoryLedger::peak(Category category) const {
  const std::scoped_lock lock(mutex_);
  return peak_[static_cast<size_t>(category)];
}

int64_t MemoryLedger::current_total() const {
  const std::scoped_lock lock(mutex_);
  return current_total_;
}

int64_t MemoryLedger::peak_total() const {
  const std::scoped_lock lock(mutex_);
  return peak_total_;
}

void MemoryLedger::add_passing(const MemoryLedger& passing) {
  const std::scoped_lock lock(mutex_, passing.mutex_);
  for (size_t i = 0; i < peak_.size(); ++i) {
    peak_[i] = std::max(peak_[i], current_[i] + passing.peak_[i]);
  }
  peak_total_ = std::max(peak_total_, current_total_ + passing.peak_total_);
}

void MemoryLedger::reset_peaks() {
  const std::scoped_lock lock(mutex_);
  peak_ = current_;
  peak_total_ = current_total_;
}

MemoryLedger& memory_ledger(Device device) { return memory_of(device).ledger; }

Storage::Storage(int64_t bytes, Category category, Device device, bool pinned)
    : bytes_(bytes), category_(category), device_(device), pinned_(pinned) {
  TESSERA_CHECK(bytes >= 0, "allocate: {} bytes", bytes);
  DeviceMemory& memory = memory_of(device);
  if (bytes == 0) return;
  if (pinned) {
    data_ = cuda::allocate_pinned(bytes);
  } else if (device.is_cpu()) {
    data_ = memory.cache.take(rounded(bytes), block_bytes_);
  } else {
    stream_ = cuda::current_stream(device.index);
    captured_ = cuda::captured_memory();
    data_ = cuda::allocate(device.index, bytes, stream_);
  }
  TESSERA_CHECK(data_ != nullptr, "allocate: no memory for {} bytes of {} on {} ({} bytes held)",
                bytes, category_name(category), device.to_string(),
                memory.ledger.current_total());
  memory.ledger.add(category, bytes);
  if (captured_) captured_->add(category, bytes);
}

Storage::Storage(std::shared_ptr<void> memory, int64_t bytes, Category category, Device device)
    : data_(memory.get()),
      bytes_(bytes),
      adopted_(std::move(memory)),
      category_(category),
      device_(device),
      pinned_(false) {
  memory_of(device).ledger.add(category, bytes);
}

Storage::~Storage() {
  if (data_ == nullptr) return;
  DeviceMemory& memory = memory_of(device_);
  memory.ledger.remove(category_, bytes_);
  if (adopted_) return;
  if (pinned_) {
    cuda::free_pinned(data_);
  } else if (device_.is_cpu()) {
    memory.cache.give(data_, block_bytes_);
  } else {
    if (captured_) captured_->remove(category_, bytes_);
    cuda::free(device_.index, data_, stream_, captured_.get());
  }
}

std::shared_ptr<Storage> allocate(int64_t bytes, Category category, Device device) {
  return std::make_shared<Storage>(bytes, category, device);
}

std::shared_ptr<Storage> allocate_pinned(int64_t bytes, Category category) {
  return std::make_shared<Storage>(bytes, category, Device{}, true);
}

std::shared_ptr<Storage> adopt(std::shared_ptr<void> memory, int64_t bytes, Category category,
                               Device device) {
  return std::make_shared<Storage>(std::move(memory), bytes, category, device);
}

void release_cached_memory() {
  for (DeviceMemory& memory : all_memory().host) memory.cache.release();
  for (int i = 0; i < cuda::device_count(); ++i) cuda::release_cached_memory(i);
}

}  // namespace tessera
