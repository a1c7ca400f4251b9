#include "course/6_zero3/zero3.h"

namespace course {

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

void Zero3::allocate_values() { values_ = buffer(layout_.shard_elements(), Category::parameters); }

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

void Zero3::use(int unit) {
  if (unit != last_) {
    const int next = following(unit);
    last_ = unit;
    for (int other = 0; other < static_cast<int>(units_.size()); ++other) {
      const Unit& candidate = units_[static_cast<size_t>(other)];
      const bool stays = other == unit || other == next || candidate.tied || candidate.readers > 0;
      // A tied unit releases no other unit. The head reads the tied unit at the end of forward. The
      // last block, which was read just before, stays gathered, because backward reads it again
      // soon.
      if (!stays && !units_[static_cast<size_t>(unit)].tied) release(other);
    }
    gather(unit);
    if (next >= 0) gather(next);
  }
  for (const dist::Work& work : units_[static_cast<size_t>(unit)].works) work.wait();
}

// Records that the current pass, a forward or a backward, reads `unit`. Returns the unit that the
// previous pass of the same kind read after `unit`, or -1 if no such unit is known.
int Zero3::following(int unit) {
  Order& order = *order_;
  if (order.next == order.units.size() || order.units[order.next] != unit) {
    order.units.resize(order.next);
    order.units.push_back(unit);
  }
  ++order.next;
  return order.next < order.units.size() ? order.units[order.next] : -1;
}

void Zero3::gather(int number) {
  Unit& unit = units_[static_cast<size_t>(number)];
  if (!unit.works.empty()) return;
  for (const int b : unit.buckets) {
    const Tensor whole =
        buffer(layout_.buckets()[static_cast<size_t>(b)].elements, Category::parameters);
    const dist::Range own = own_range(b);
    whole.flat(own.begin, own.end).copy_from(shard_of(values_, b));
    unit.works.push_back(communicator_.all_gather(whole, {dist::Traffic::parameters, b}));
    attach(b, whole);
  }
}

void Zero3::release(int number) {
  Unit& unit = units_[static_cast<size_t>(number)];
  if (unit.works.empty()) return;
  for (const int b : unit.buckets) attach(b, {});
  unit.works.clear();
}

void Zero3::release_all() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) release(unit);
  last_ = -1;
}

void Zero3::begin_backward() {
  order_ = &backward_;
  last_ = -1;
}

void Zero3::end_backward() {
  release_all();
  order_ = &forward_;
  forward_.next = backward_.next = 0;
}

void Zero3::update() {
  ++updates_;
  for (int b = 0; b < buckets(); ++b) {
    apply_rule(shard_of(values_, b), shard_of(sums_, b), shard_of(first_moment_, b),
               shard_of(second_moment_, b));
  }
}

}  // namespace course
