// Lesson 6, yours to write. README.md beside this file explains the task. `course/check 6` grades
// your code.
#include "course/6_zero3/zero3.h"
#include "course/lib/todo.h"

namespace course {

// Written already: makes the units. Each unit has the buckets of one block of the model. In this
// lesson buckets do not span blocks (ByBlock).
Zero3::Zero3(nn::Module& model, const optim::AdamW& rule, dist::Communicator& communicator,
             int64_t bucket_bytes)
    : Zero2(model, rule, communicator, bucket_bytes, ByBlock{}) {
  for (int b = 0; b < buckets(); ++b) {
    const dist::Bucket& bucket = layout_.buckets()[static_cast<size_t>(b)];
    const bool same = b > 0 && bucket.block >= 0 &&
                      bucket.block == layout_.buckets()[static_cast<size_t>(b) - 1].block;
    if (!same) units_.emplace_back();
    units_.back().buckets.push_back(b);
    units_.back().tied = units_.back().tied || bucket.shared;
    unit_of_.push_back(static_cast<int>(units_.size()) - 1);
  }
}

// values_ has only this rank's shards.
void Zero3::allocate_values() { todo("lesson 6: Zero3::allocate_values"); }

// Written already: sets the hooks. Parameters have no memory until they are used. In forward and in
// backward, an operation calls about_to_be_used before it reads a value, and no_longer_used
// afterwards.
void Zero3::place() {
  for (int b = 0; b < buckets(); ++b) {
    initialize(b, own_range(b), shard_of(values_, b));
    attach(b, {});
    for (const int p : layout_.buckets()[static_cast<size_t>(b)].parameters) {
      Leaf& leaf = parameters_[static_cast<size_t>(p)].parameter.leaf();
      Unit& unit = units_[static_cast<size_t>(unit_of_[static_cast<size_t>(b)])];
      leaf.about_to_be_used = [this, &unit] {
        use(static_cast<int>(&unit - units_.data()));
        ++unit.readers;
      };
      leaf.no_longer_used = [&unit] { --unit.readers; };
    }
  }
}

// Called before an operation reads `unit`. last_ is the unit that was read last, or -1 for none. If
// `unit` differs from last_, set last_ to `unit`, and:
//   1. Release all units except `unit`, the following unit, tied units and units with readers. If
//      `unit` is tied, release none. (The output head reads a tied unit between forward and
//      backward of the last block, so the last block is needed again at once.)
//   2. Gather `unit`, and then the following unit.
// In any case, wait at the end until `unit` is gathered.
void Zero3::use(int) { todo("lesson 6: Zero3::use"); }

// A pass is a forward or a backward. Returns the unit that the previous pass of the same kind read
// after `unit`, or -1 if no such unit is known. order_->units has the units in the order of this
// kind of pass, and order_->next is the position of `unit`. Record the order during the pass: if
// the list ends before this position, or has another unit there, cut off the list at this position
// and append `unit`. Then advance `next`.
int Zero3::following(int) { todo("lesson 6: Zero3::following"); }

// Does nothing if the unit is already gathered (see Unit::works). Otherwise, for each bucket:
// allocate a buffer for the whole bucket, copy this rank's shard to its place, call all_gather with
// Traffic::parameters, and attach the buffer.
void Zero3::gather(int) { todo("lesson 6: Zero3::gather"); }

// Removes the memory of the unit's parameters: attach(b, {}) for each bucket. After that, the unit
// must count as not gathered (see Unit::works).
void Zero3::release(int) { todo("lesson 6: Zero3::release"); }

// Written already: releases every unit. Resets last_, because the unit that was read last must be
// gathered again before its next use.
void Zero3::release_all() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) release(unit);
  last_ = -1;
}

// Written already: selects backward's own order. Backward first reads the unit that forward read
// last. Without the reset of last_, `use` would not call `following` for this unit, and backward's
// order would miss the unit.
void Zero3::begin_backward() {
  order_ = &backward_;
  last_ = -1;
}

// Release all units, because none may stay gathered during the update. Then prepare the next
// micro-step: order_ must select the order of forward, and both orders must be at their first unit
// (Order::next).
void Zero3::end_backward() { todo("lesson 6: Zero3::end_backward"); }

// Update as at stage 2, but without a gather: the next forward gathers the values that it reads.
void Zero3::update() { todo("lesson 6: Zero3::update"); }

}  // namespace course
