#include "course/4_zero1/zero1.h"

namespace course {

void Zero1::allocate_state() {
  first_moment_ = f32_buffer(layout_.shard_elements(), Category::optimizer_state);
  second_moment_ = f32_buffer(layout_.shard_elements(), Category::optimizer_state);
}

void Zero1::update() {
  ++updates_;
  std::vector<dist::Work> gathers;
  for (int b = 0; b < buckets(); ++b) {
    const Tensor values = bucket_of(values_, b);
    const dist::Range own = own_range(b);
    apply_rule(values.flat(own.begin, own.end), shard_of(sums_, b), shard_of(first_moment_, b),
               shard_of(second_moment_, b));
    // The gather is in flight while the next bucket is updated.
    gathers.push_back(communicator_.all_gather(values, {dist::Traffic::parameters, b}));
  }
  for (const dist::Work& gather : gathers) gather.wait();
}

}  // namespace course
