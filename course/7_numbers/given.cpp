// The code that lesson 7 gives you.
#include "course/7_numbers/mixed.h"

namespace course {

Mixed::Mixed(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
             int64_t bucket_bytes, std::optional<optim::LossScaling> scaling)
    : Zero3(model, rule, communicator, bucket_bytes), scaling_(scaling) {
  if (scaling_) loss_scale_ = scaling_->initial;
}

std::vector<Tensor> Mixed::own_sums() const {
  std::vector<Tensor> list;
  for (int p = 0; p < std::ssize(parameters_); ++p) {
    const dist::ParameterSlot& slot = layout_.slot(p);
    const dist::Range own = layout_.owned(p, communicator_.rank());
    if (own.size() == 0) continue;
    const int64_t begin = slot.offset + own.begin - own_range(slot.bucket).begin;
    list.push_back(shard_of(sums_, slot.bucket).flat(begin, begin + own.size()));
  }
  return list;
}

}  // namespace course
