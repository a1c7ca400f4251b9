#include "optim/zero/update_place.h"

#include <algorithm>
#include <cstring>

#include "core/ops/convert.h"
#include "core/pinned_tensor.h"

namespace tessera::optim {

Tensor UpdateOnDevice::zeros(int64_t elements) const {
  return Tensor::zeros({elements}, DType::f32, device_, Category::optimizer_state);
}

void UpdateOnDevice::round(int, const Tensor& weights, const Tensor& values) {
  kernels::convert(current_context(device_), values, weights);
}

// With a GPU and several buckets there are two slots (host memory for one bucket each), so that
// one bucket is copied while the CPU updates another.
UpdateOnHost::UpdateOnHost(Device other, const Crossing& crossing)
    : other_(other),
      slots_(!other.is_cpu() ? static_cast<size_t>(std::clamp(crossing.buckets, 1, 2)) : 1) {
  for (Slot& slot : slots_) {
    slot.sums = host_zeros(crossing.largest, crossing.sums, Category::communication);
    slot.values = host_zeros(crossing.largest, crossing.values, Category::communication);
  }
}

Tensor UpdateOnHost::host_zeros(int64_t elements, DType dtype, Category category) const {
  if (other_.is_cpu()) return Tensor::zeros({elements}, dtype, Device{}, category);
  Tensor result = pinned_tensor({elements}, dtype, category);
  if (result.bytes() > 0) std::memset(result.raw(), 0, static_cast<size_t>(result.bytes()));
  return result;
}

Tensor UpdateOnHost::zeros(int64_t elements) const {
  return host_zeros(elements, DType::f32, Category::optimizer_state);
}

UpdateOnHost::Slot& UpdateOnHost::slot(int bucket) {
  return slots_[static_cast<size_t>(bucket) % slots_.size()];
}

std::optional<cuda::Event> UpdateOnHost::copy(const Tensor& to, const Tensor& from) const {
  if (other_.is_cpu()) {
    to.copy_from(from);
    return std::nullopt;
  }
  // This event is recorded on the caller's stream, because the copy stream is not yet current.
  const cuda::Event before(other_.index);
  const cuda::StreamScope here(other_.index, cuda::copy_stream(other_.index));
  // The copy must wait for earlier work of the caller's stream. If start() is the caller, this work
  // computes the gradient sums that are copied. If round() is the caller, this work may still read
  // the parameters that the copy overwrites.
  before.wait();
  cuda::copy(other_.index, to.raw(), from.raw(), from.bytes());
  return cuda::Event(other_.index);
}

void UpdateOnHost::start(int bucket, const Tensor& sums) {
  // No wait is needed: the CPU has finished the update that read this slot's previous sums.
  Slot& slot = this->slot(bucket);
  slot.copied_sums = slot.sums.flat(0, sums.elements());
  slot.sums_copied = copy(slot.copied_sums, sums);
}

Tensor UpdateOnHost::take(int bucket) {
  const Slot& slot = this->slot(bucket);
  // Waits for the copy of the sums, because the CPU reads them next.
  if (slot.sums_copied) slot.sums_copied->synchronize();
  return slot.copied_sums;
}

void UpdateOnHost::round(int bucket, const Tensor& weights, const Tensor& values) {
  Slot& slot = this->slot(bucket);
  // The host waits until the slot's previous values have been copied, because the CPU overwrites
  // them below.
  if (slot.values_copied) slot.values_copied->synchronize();
  const Tensor rounded = slot.values.flat(0, values.elements());
  kernels::convert(current_context(device()), rounded, weights);
  slot.values_copied = copy(values, rounded);
  // The caller's stream waits for the copy, because gathers and the next forward read the values in
  // that stream. The host does not wait, and continues with the next bucket.
  if (slot.values_copied) slot.values_copied->wait();
}

}  // namespace tessera::optim
