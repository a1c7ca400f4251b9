#include "core/memory.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/cuda.h"
#include "core/error.h"
#include "core/heap.h"

namespace tessera {
namespace {

constexpr int64_t most_bytes = int64_t{1} << 56;  // more than any machine has

struct DeviceMemory {
  MemoryLedger ledger;
  // The heaps are unused on CUDA. Small blocks have a heap of their own, so that they do not cut up
  // the free ranges that large blocks need.
  Heap small_blocks{64};
  Heap large_blocks{4096};

  Heap& heap_of(int64_t bytes) { return bytes < 32768 ? small_blocks : large_blocks; }
};

// The memory of all devices. The object is never destroyed, because tensors of static lifetime free
// their memory after main.
struct AllMemory {
  std::array<DeviceMemory, 2> host;  // of the devices cpu and cpu:1 (core/device.h)
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
                "memory: there is no device {}: {}", device.to_string(),
                device.is_cpu() || cuda::unusable().empty()
                    ? fmt::format("{} are usable", devices.size())
                    : cuda::unusable());
  return devices[static_cast<size_t>(device.index)];
}

}  // namespace

std::string_view category_name(Category category) {
  constexpr std::string_view names[] = {"parameters",  "gradients",     "optimizer_state",
                                        "activations", "communication", "workspace",
                                        "checkpoint"};
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
  TESSERA_CHECK(bytes >= 0, "allocate: {} bytes, expected at least 0", bytes);
  DeviceMemory& memory = memory_of(device);
  if (bytes == 0) return;
  if (pinned) {
    data_ = cuda::allocate_pinned(bytes);
  } else if (device.is_cpu()) {
    Heap& heap = memory.heap_of(bytes);
    block_bytes_ = bytes < most_bytes ? heap.block_bytes(bytes) : 0;
    if (block_bytes_ > 0) data_ = heap.take(block_bytes_);
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
    memory.heap_of(bytes_).give(data_, block_bytes_);
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

int64_t peak_held_bytes(Device device) {
  const DeviceMemory& memory = memory_of(device);
  return memory.small_blocks.peak_held_bytes() + memory.large_blocks.peak_held_bytes();
}

void release_cached_memory() {
  for (DeviceMemory& memory : all_memory().host) {
    memory.small_blocks.release();
    memory.large_blocks.release();
  }
  for (int i = 0; i < cuda::device_count(); ++i) cuda::release_cached_memory(i);
}

}  // namespace tessera
