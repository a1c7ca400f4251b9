// The code that lesson 8 gives you.
#include "course/8_survival/survivor.h"

namespace course {

std::span<float> Survivor::part(const Tensor& shards, int p) const {
  const dist::ParameterSlot& slot = layout_.slot(p);
  const dist::Range own = layout_.owned(p, communicator_.rank());
  if (own.size() == 0) return {};
  const int64_t begin = slot.offset + own.begin - own_range(slot.bucket).begin;
  return shard_of(shards, slot.bucket).flat(begin, begin + own.size()).values<float>();
}

}  // namespace course
