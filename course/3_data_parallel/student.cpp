// Lesson 3, yours to write. README.md beside this file explains the task. `course/check 3` grades
// your code.
#include "course/3_data_parallel/data_parallel.h"
#include "course/lib/todo.h"

namespace course {

// The first five functions are written already. A rank has all values, gradients and moments, but
// only the gradient sums of its own shards.
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

// Autograd calls gradient_buffer before it writes a gradient, and gradient_complete when the
// gradient is complete.
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

// Returns the memory of a bucket's gradient, a part of gradients_. The exchange that send() started
// in the previous micro-step may still read this memory. The exchange's Work is sent_[bucket].
Tensor DataParallel::open(int) { todo("lesson 3: DataParallel::open"); }

// Called when the gradient of a parameter is complete. layout_.slot(parameter).bucket is the
// parameter's bucket; missing_[bucket] counts the bucket's gradients that are not complete yet.
void DataParallel::complete(int) { todo("lesson 3: DataParallel::complete"); }

// Sends a bucket's gradient, opened_[bucket], to the owners of its shards. Call
// communicator_.exchange with contributors_ and a function. The communicator calls this function
// with each chunk that arrives on this rank, in ascending order of source. The function adds the
// chunk to its place in this rank's shard of the sums (shard_of(sums_, bucket)) by `accumulate`.
// For the chunks of rank 0 in the first micro-step of a step, `first` of accumulate must be true,
// because each step begins a new sum. Keep the Work in sent_. The function runs later, with several
// ranks on another thread, so it must capture copies of everything that it needs.
void DataParallel::send(int) { todo("lesson 3: DataParallel::send"); }

// sum = (first ? 0 : sum) + gradient, element by element.
void DataParallel::accumulate(const Tensor&, const Tensor&, bool) {
  todo("lesson 3: DataParallel::accumulate");
}

// The sums are complete. Count the update in updates_ first. Then, for each bucket: copy this
// rank's shard of the sums to its place in the bucket's gradient memory, gather the other shards
// (Traffic::gradients), and update all weights of the bucket.
void DataParallel::update() { todo("lesson 3: DataParallel::update"); }

}  // namespace course
