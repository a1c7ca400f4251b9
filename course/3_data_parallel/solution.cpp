#include "course/3_data_parallel/data_parallel.h"

namespace course {

void DataParallel::allocate_values() {
  values_ = buffer(layout_.flat_elements(), Category::parameters);
}

void DataParallel::allocate_gradients() {
  gradients_ = buffer(layout_.flat_elements(), Category::gradients);
  sums_ = f32_buffer(layout_.shard_elements(), Category::gradients);
}

void DataParallel::allocate_state() {
  first_moment_ = f32_buffer(layout_.flat_elements(), Category::optimizer_state);
  second_moment_ = f32_buffer(layout_.flat_elements(), Category::optimizer_state);
}

void DataParallel::place() {
  for (int b = 0; b < buckets(); ++b) {
    const Tensor values = bucket_of(values_, b);
    initialize(b, {0, values.elements()}, values);
    attach(b, values);
  }
}

void DataParallel::set_hooks() {
  for (int p = 0; p < static_cast<int>(parameters_.size()); ++p) {
    Leaf& leaf = parameters_[static_cast<size_t>(p)].parameter.leaf();
    leaf.gradient_buffer = [this, p] {
      const dist::ParameterSlot& slot = layout_.slot(p);
      Tensor& bucket = opened_[static_cast<size_t>(slot.bucket)];
      if (!bucket.defined()) bucket = open(slot.bucket);
      return bucket.flat(slot.offset, slot.offset + slot.elements)
          .view(parameters_[static_cast<size_t>(p)].parameter.shape());
    };
    leaf.gradient_complete = [this, p] { complete(p); };
  }
}

Tensor DataParallel::open(int bucket) {
  // The exchange that send() started in the previous micro-step may still read this memory.
  sent_[static_cast<size_t>(bucket)].wait();
  return bucket_of(gradients_, bucket);
}

void DataParallel::complete(int parameter) {
  const int bucket = layout_.slot(parameter).bucket;
  if (--missing_[static_cast<size_t>(bucket)] == 0) send(bucket);
}

// Contributions arrive in ascending order of rank, which is the order of micro-batches. Therefore
// the sum has the same bits for any number of ranks. With several ranks, the function that adds a
// contribution runs on the communicator's thread.
void DataParallel::send(int bucket) {
  const bool first_micro_step = micro_.micro_step == 0;
  const Tensor sum = shard_of(sums_, bucket);
  sent_[static_cast<size_t>(bucket)] = communicator_.exchange(
      opened_[static_cast<size_t>(bucket)], contributors_,
      [this, sum, first_micro_step](int source, int64_t begin, const Tensor& chunk) {
        accumulate(sum.flat(begin, begin + chunk.elements()), chunk,
                   first_micro_step && source == 0);
      },
      {dist::Traffic::gradients, bucket});
}

void DataParallel::accumulate(const Tensor& sum, const Tensor& gradient, bool first) {
  float* const to = sum.data<float>();
  const float* const from = gradient.data<float>();
  for (int64_t i = 0; i < sum.elements(); ++i) to[i] = (first ? 0.0f : to[i]) + from[i];
}

void DataParallel::update() {
  ++updates_;
  for (int b = 0; b < buckets(); ++b) {
    const Tensor whole = bucket_of(gradients_, b);
    const dist::Range own = own_range(b);
    whole.flat(own.begin, own.end).copy_from(shard_of(sums_, b));
    communicator_.all_gather(whole, {dist::Traffic::gradients, b}).wait();
    apply_rule(bucket_of(values_, b), whole, bucket_of(first_moment_, b),
               bucket_of(second_moment_, b));
  }
}

}  // namespace course
