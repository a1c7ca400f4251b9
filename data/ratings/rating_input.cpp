#include "data/ratings/rating_input.h"

namespace tessera::data {
namespace {

constexpr size_t slot_count = 2;

}  // namespace

RatingInput::RatingInput(const RatingBatches& batches)
    : batches_(batches), input_(allocate_rating_input(batches.sizes())) {
  if (input_.users.device().is_cpu()) return;
  slots_.resize(slot_count);
  for (Slot& slot : slots_) slot.batch = allocate_rating_batch(batches.sizes(), true);
}

int64_t RatingInput::host_bytes(const RatingBatchSizes& sizes, Device device) {
  return device.is_cpu() ? 0 : int64_t{slot_count} * sizes.bytes();
}

void RatingInput::load(const MicroBatch& micro) {
  if (slots_.empty()) return batches_.read(micro, input_);
  Slot& slot = slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  // Wait until the GPU has copied this slot's batch, because the host overwrites the slot next.
  // With two slots, the host can be up to two micro-steps ahead of the GPU.
  if (slot.copied) slot.copied->synchronize();
  batches_.read(micro, slot.batch);
  copy_batch(input_, slot.batch);
  slot.copied.emplace(input_.users.device().index);
}

void copy_batch(const RatingBatch& to, const RatingBatch& from) {
  for (const auto member :
       {&RatingBatch::users, &RatingBatch::items, &RatingBatch::targets, &RatingBatch::history,
        &RatingBatch::history_offsets, &RatingBatch::history_scale}) {
    const Tensor& tensor = to.*member;
    if (!tensor.defined()) continue;
    cuda::copy(tensor.device().index, tensor.raw(), (from.*member).raw(), tensor.bytes());
  }
}

}  // namespace tessera::data
