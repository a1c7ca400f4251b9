#include "data/tokens/token_input.h"

#include "core/pinned_tensor.h"

namespace tessera::data {
namespace {

constexpr size_t slot_count = 2;

Sequences halves(const Tensor& both) {
  const int64_t sequences = both.shape()[0] / 2;
  return {both.rows(0, sequences), both.rows(sequences, 2 * sequences)};
}

}  // namespace

TokenInput::TokenInput(const TokenData& data, const Sizes& sizes)
    : data_(data),
      both_(Tensor::empty({2 * sizes.sequences, sizes.context}, DType::i32)),
      input_(halves(both_)) {
  if (both_.device().is_cpu()) return;
  slots_.resize(slot_count);
  for (Slot& slot : slots_) {
    slot.both = pinned_tensor(both_.shape(), DType::i32, Category::activations);
  }
}

int64_t TokenInput::host_bytes(const Sizes& sizes, Device device) {
  if (device.is_cpu()) return 0;
  return int64_t{slot_count} * 2 * sizes.sequences * sizes.context * dtype_size(DType::i32);
}

void TokenInput::load(const MicroBatch& micro) {
  if (slots_.empty()) return data_.read(micro, input_);
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  // Wait until the GPU has copied this slot's batch, because the host overwrites the slot next.
  // With two slots, the host can be up to two micro-steps ahead of the GPU.
  if (slot.copied) slot.copied->synchronize();
  data_.read(micro, halves(slot.both));
  const int index = both_.device().index;
  cuda::copy(index, both_.raw(), slot.both.raw(), both_.bytes());
  slot.copied.emplace(index);
}

}  // namespace tessera::data
