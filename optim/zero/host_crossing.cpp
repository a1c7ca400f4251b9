#include "optim/zero/host_crossing.h"

#include <algorithm>
#include <cstring>

namespace tessera::optim {

Tensor host_zeros(int64_t elements, DType dtype, Category category, Device other) {
  if (other.is_cpu()) return Tensor::zeros({elements}, dtype, Device{}, category);
  Tensor result = Tensor::unallocated({elements}, dtype);
  result.attach(allocate_pinned(result.bytes(), category), 0);
  if (result.bytes() > 0) std::memset(result.raw(), 0, static_cast<size_t>(result.bytes()));
  return result;
}

HostCrossing::HostCrossing(Device device, int buckets, int64_t largest, DType sums, DType values)
    : device_(device), slots_(ahead() ? static_cast<size_t>(std::clamp(buckets, 1, 2)) : 1) {
  for (Slot& slot : slots_) {
    slot.sums = host_zeros(largest, sums, Category::communication, device);
    slot.values = host_zeros(largest, values, Category::communication, device);
  }
}

HostCrossing::Slot& HostCrossing::slot(int bucket) {
  return slots_[static_cast<size_t>(bucket) % slots_.size()];
}

std::optional<cuda::Event> HostCrossing::copy(const Tensor& to, const Tensor& from) const {
  if (device_.is_cpu()) {
    to.copy_from(from);
    return std::nullopt;
  }
  const cuda::Event before(device_.index);
  const cuda::StreamScope here(device_.index, cuda::copy_stream(device_.index));
  // The copy stream waits for what the caller's stream was given: it makes the sums, or may still
  // read the values that are overwritten now.
  before.wait();
  cuda::copy(device_.index, to.raw(), from.raw(), from.bytes());
  return cuda::Event(device_.index);
}

void HostCrossing::bring(int bucket, const Tensor& sums) {
  // Nobody waits for the slot: the CPU was done with it before the bucket in between was brought.
  Slot& slot = this->slot(bucket);
  slot.brought = copy(slot.sums.flat(0, sums.elements()), sums);
}

Tensor HostCrossing::sums(int bucket, int64_t elements) {
  const Slot& slot = this->slot(bucket);
  // The host waits for this copy alone: the CPU reads next what it writes.
  if (slot.brought) slot.brought->synchronize();
  return slot.sums.flat(0, elements);
}

Tensor HostCrossing::room(int bucket, int64_t elements) {
  const Slot& slot = this->slot(bucket);
  // The host waits until the values before the last ones have left: the CPU overwrites them.
  if (slot.sent) slot.sent->synchronize();
  return slot.values.flat(0, elements);
}

void HostCrossing::send(int bucket, const Tensor& values) {
  Slot& slot = this->slot(bucket);
  slot.sent = copy(values, slot.values.flat(0, values.elements()));
  // The caller's stream waits, not the host: gathers and the next forward read the values there.
  if (slot.sent) slot.sent->wait();
}

}  // namespace tessera::optim
