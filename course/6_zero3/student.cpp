// Lesson 6, yours to write. README.md beside this file explains what; `course/check 6` grades it.
#include "course/6_zero3/zero3.h"
#include "course/lib/todo.h"

namespace course {

// Given: the units, each with the buckets of one block of the model. Buckets do not span blocks
// here (ByBlock).
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

// values_ holds this rank's shards only.
void Zero3::allocate_values() { todo("lesson 6: Zero3::allocate_values"); }

// Given: parameters have no memory until they are used. Operations announce each use by a hook,
// before they read a value, in forward and in backward, and say when they are done.
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

// An operation is about to read a unit. If it is another one than the last (last_):
//   1. let go of all units but this one, the following one, tied ones and those with readers;
//      if this unit is tied, let go of none (the head comes between forward and backward of the
//      last block, which is needed again at once);
//   2. gather this unit, and then the following one.
// Then wait until this unit is there.
void Zero3::use(int) { todo("lesson 6: Zero3::use"); }

// The unit that comes after `unit` in this pass, if the micro-step before has shown it; else -1.
// order_ is the order of forward or of backward. Learn it as you go: if the order ends here, or
// goes on with another unit than this one, cut it off here and append this unit.
int Zero3::following(int) { todo("lesson 6: Zero3::following"); }

// For each bucket of the unit, unless it is gathered already (works): a new buffer for the whole
// bucket, with this rank's shard in its place; all_gather with Traffic::parameters; attach.
void Zero3::gather(int) { todo("lesson 6: Zero3::gather"); }

// Takes the memory of the unit's parameters away: attach(b, {}) for each bucket. The unit is then
// not gathered any more.
void Zero3::release(int) { todo("lesson 6: Zero3::release"); }

// Given.
void Zero3::release_all() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) release(unit);
  last_ = -1;
}

// Given: backward has an order of its own, and its first use enters its unit anew.
void Zero3::begin_backward() {
  order_ = &backward_;
  last_ = -1;
}

// Nothing may stay gathered over the update. The next forward begins both orders anew (next).
void Zero3::end_backward() { todo("lesson 6: Zero3::end_backward"); }

// As at stage 2, without a gather: the next forward gathers what it reads.
void Zero3::update() { todo("lesson 6: Zero3::update"); }

}  // namespace course
