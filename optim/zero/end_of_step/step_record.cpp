#include "optim/zero/end_of_step/step_record.h"

#include <algorithm>

#include "core/ops/copy.h"
#include "core/ops/fill.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

StepRecord::StepRecord(std::shared_ptr<dist::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void StepRecord::begin(int64_t micro_steps, int64_t parameters) {
  micro_steps_ = micro_steps;
  parameters_ = parameters;
  flag_bytes_ = 1 + (micro_steps + parameters + 7) / 8;
  const int64_t ranks = communicator_->size();
  // Old buffers are freed first, so that old and new buffers never exist at the same time.
  if (!losses_.defined() || losses_.elements() != ranks * micro_steps) {
    losses_ = {};
    losses_ = flat_buffer(*communicator_, ranks * micro_steps, DType::f32,
                          Category::communication);
  }
  if (!flags_.values().defined() || flags_.values().elements() != ranks * flag_bytes_) {
    flags_ = {};
    flags_ = dist::HostBuffer(ranks * flag_bytes_, DType::u8, *communicator_);
  }
  // The entries of a micro-step without data stay 0.
  const int64_t own = communicator_->rank() * micro_steps;
  kernels::fill(current_context(losses_.device()), losses_.flat(own, own + micro_steps), 0.0f);
  std::fill_n(flags_.data<uint8_t>() + communicator_->rank() * flag_bytes_, flag_bytes_,
              uint8_t{0});
}

void StepRecord::set_flag(int64_t index) {
  // The first byte of a rank's flags contains the notes.
  uint8_t* own = flags_.data<uint8_t>() + communicator_->rank() * flag_bytes_ + 1;
  own[index / 8] = static_cast<uint8_t>(own[index / 8] | (1u << (index % 8)));
}

void StepRecord::set_loss(int64_t micro_step, const Tensor& loss) {
  const int64_t at = communicator_->rank() * micro_steps_ + micro_step;
  // The copy runs in stream order, so the host does not wait for the loss.
  kernels::copy(current_context(losses_.device()), losses_.flat(at, at + 1), loss);
  set_flag(micro_step);
}

void StepRecord::set_reached(int64_t parameter) { set_flag(micro_steps_ + parameter); }

void StepRecord::set_notes(uint8_t notes) {
  flags_.data<uint8_t>()[communicator_->rank() * flag_bytes_] = notes;
}

uint8_t StepRecord::notes() const {
  uint8_t notes = 0;
  for (int64_t rank = 0; rank < communicator_->size(); ++rank) {
    notes = static_cast<uint8_t>(notes | flags_.data<uint8_t>()[rank * flag_bytes_]);
  }
  return notes;
}

void StepRecord::exchange() {
  // The losses are in flight while the hosts exchange the flags. The host waits for the flags,
  // because they decide which parameters are updated.
  const dist::Work losses = communicator_->all_gather(losses_, {dist::Traffic::losses, -1});
  flags_.all_gather(*communicator_, dist::Traffic::flags).wait();
  losses.wait();
}

bool StepRecord::flag(int64_t rank, int64_t index) const {
  const uint8_t byte = flags_.data<uint8_t>()[rank * flag_bytes_ + 1 + index / 8];
  return ((byte >> (index % 8)) & 1u) != 0;
}

bool StepRecord::had_data(int64_t micro_batch) const {
  const int64_t ranks = communicator_->size();
  return flag(micro_batch % ranks, micro_batch / ranks);
}

bool StepRecord::reached(int64_t parameter) const {
  // A gradient on one rank is enough, because the gradient sum includes that rank's gradient.
  for (int64_t rank = 0; rank < communicator_->size(); ++rank) {
    if (flag(rank, micro_steps_ + parameter)) return true;
  }
  return false;
}

}  // namespace tessera::optim
