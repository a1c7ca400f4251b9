#include "optim/step_record.h"

#include <algorithm>

namespace tessera::optim {
namespace {

// A buffer of the given size; the old one goes before a larger one comes.
void make_room(dist::HostBuffer& buffer, int64_t elements, DType dtype,
               dist::Communicator& communicator) {
  if (buffer.values().defined() && buffer.values().elements() == elements) return;
  buffer = {};
  buffer = dist::HostBuffer(elements, dtype, communicator);
}

}  // namespace

StepRecord::StepRecord(std::shared_ptr<dist::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void StepRecord::begin(int64_t micro_steps, int64_t parameters) {
  micro_steps_ = micro_steps;
  parameters_ = parameters;
  flag_bytes_ = (micro_steps + parameters + 7) / 8;
  make_room(losses_, communicator_->size() * micro_steps, DType::f32, *communicator_);
  make_room(flags_, communicator_->size() * flag_bytes_, DType::u8, *communicator_);
  std::fill_n(losses_.data<float>() + communicator_->rank() * micro_steps, micro_steps, 0.0f);
  std::fill_n(flags_.data<uint8_t>() + communicator_->rank() * flag_bytes_, flag_bytes_,
              uint8_t{0});
}

void StepRecord::set_flag(int64_t index) {
  uint8_t* own = flags_.data<uint8_t>() + communicator_->rank() * flag_bytes_;
  own[index / 8] = static_cast<uint8_t>(own[index / 8] | (1u << (index % 8)));
}

void StepRecord::set_loss(int64_t micro_step, float loss) {
  losses_.data<float>()[communicator_->rank() * micro_steps_ + micro_step] = loss;
  set_flag(micro_step);
}

void StepRecord::set_reached(int64_t parameter) { set_flag(micro_steps_ + parameter); }

void StepRecord::exchange() {
  const dist::Work losses = losses_.all_gather(*communicator_, dist::Traffic::losses);
  flags_.all_gather(*communicator_, dist::Traffic::flags).wait();
  losses.wait();
  losses_.fetch();
  flags_.fetch();
}

int64_t StepRecord::place(int64_t micro_batch) const {
  const int64_t ranks = communicator_->size();
  return (micro_batch % ranks) * micro_steps_ + micro_batch / ranks;
}

bool StepRecord::flag(int64_t rank, int64_t index) const {
  const uint8_t byte = flags_.data<uint8_t>()[rank * flag_bytes_ + index / 8];
  return ((byte >> (index % 8)) & 1u) != 0;
}

bool StepRecord::had_data(int64_t micro_batch) const {
  const int64_t ranks = communicator_->size();
  return flag(micro_batch % ranks, micro_batch / ranks);
}

float StepRecord::loss(int64_t micro_batch) const {
  return losses_.data<float>()[place(micro_batch)];
}

bool StepRecord::reached(int64_t parameter) const {
  for (int64_t rank = 0; rank < communicator_->size(); ++rank) {
    if (flag(rank, micro_steps_ + parameter)) return true;
  }
  return false;
}

}  // namespace tessera::optim
