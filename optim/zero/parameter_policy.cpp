#include "optim/zero/parameter_policy.h"

#include <algorithm>

#include "core/ops/copy.h"

namespace tessera::optim {

GatheredParameters::GatheredParameters(const Partition& partition, dist::Communicator& communicator)
    : partition_(partition),
      communicator_(communicator),
      gathers_(static_cast<size_t>(partition.buckets())) {}

GatheredParameters::~GatheredParameters() {
  // The destructor does not wait, because it may run while an exception unwinds. Instead, the first
  // operation that reads a value in flight waits.
  for (size_t i = 0; i < partition_.parameters().size(); ++i) {
    const int bucket = partition_.layout().slot(static_cast<int>(i)).bucket;
    const dist::Work work = gathers_[static_cast<size_t>(bucket)];
    if (work.done()) continue;
    partition_.parameters()[i].named.parameter.leaf().about_to_be_used = [work] { work.wait(); };
  }
}

void GatheredParameters::wait(size_t bucket) {
  gathers_[bucket].wait();
  gathers_[bucket] = {};
}

void GatheredParameters::use(int parameter) {
  wait(static_cast<size_t>(partition_.layout().slot(parameter).bucket));
}

// Does not wait: use() waits bucket by bucket, so that gathers overlap with the next forward.
dist::Work GatheredParameters::gather_updated(int bucket) {
  dist::Work& work = gathers_[static_cast<size_t>(bucket)];
  work = communicator_.all_gather(partition_.held_values(bucket),
                                  partition_.call(dist::Traffic::parameters, bucket));
  return work;
}

void GatheredParameters::synchronize() {
  for (size_t bucket = 0; bucket < gathers_.size(); ++bucket) wait(bucket);
}

ShardedParameters::ShardedParameters(const Partition& partition, dist::Communicator& communicator,
                                     bool prefetch, MicroStepLog& log)
    : partition_(partition), communicator_(communicator), prefetch_(prefetch), log_(log) {
  int64_t block = -1;
  for (int b = 0; b < partition.buckets(); ++b) {
    const dist::Bucket& bucket = partition.bucket(b);
    // The consecutive buckets of one block (Module::begin_block) are one unit: they are gathered
    // together. A bucket outside any block is a unit by itself.
    if (units_.empty() || bucket.block < 0 || bucket.block != block) units_.emplace_back();
    block = bucket.block;
    units_.back().buckets.push_back(b);
    units_.back().tied = units_.back().tied || bucket.shared;
    unit_of_.push_back(static_cast<int>(units_.size()) - 1);
  }
}

ShardedParameters::~ShardedParameters() { release_all(); }

void ShardedParameters::use(int parameter) {
  const int bucket = partition_.layout().slot(parameter).bucket;
  const int unit = unit_of_[static_cast<size_t>(bucket)];
  // An operation may read several units, for instance if its weight and its bias are in two buckets
  // outside any block. Units with readers must stay gathered when another unit is entered.
  if (unit != last_) enter(unit, being_read());
  ++units_[static_cast<size_t>(unit)].readers;
}

void ShardedParameters::done(int parameter) {
  const int bucket = partition_.layout().slot(parameter).bucket;
  --units_[static_cast<size_t>(unit_of_[static_cast<size_t>(bucket)])].readers;
}

std::vector<int> ShardedParameters::being_read() const {
  std::vector<int> list;
  for (size_t i = 0; i < units_.size(); ++i) {
    if (units_[i].readers > 0) list.push_back(static_cast<int>(i));
  }
  return list;
}

void ShardedParameters::enter(int unit, const std::vector<int>& kept) {
  // Gathers are collective. So the call is logged, and is repeated in later micro-steps in which
  // this rank has no data.
  if (phase_ != Phase::evaluation) log_.add([this, unit, kept] { enter(unit, kept); });
  const int next = successor(unit);
  last_ = unit;
  // Memory is freed before new units are gathered. Entering a tied unit releases nothing, because
  // the unit before it may be needed again. For example, the tied output head is read after the
  // last block's forward, and backward then needs the last block again.
  if (!units_[static_cast<size_t>(unit)].tied) {
    for (int other = 0; other < static_cast<int>(units_.size()); ++other) {
      const bool stays = other == unit || other == next ||
                         units_[static_cast<size_t>(other)].tied ||
                         std::find(kept.begin(), kept.end(), other) != kept.end();
      if (!stays) release(other);
    }
  }
  // This unit's gather comes first, because collectives run in order. The next unit's gather is in
  // flight while operations read this unit.
  gather(unit);
  if (next >= 0) gather(next);
  for (const dist::Work& work : units_[static_cast<size_t>(unit)].works) work.wait();
}

int ShardedParameters::successor(int unit) {
  if (phase_ == Phase::evaluation) {
    // An evaluation is expected to read units in the order of the training forward. A tied unit may
    // be in this order several times, so it does not tell which unit comes next.
    const auto& units = forward_.units;
    const auto at = std::find(units.begin(), units.end(), unit);
    const bool known = !units_[static_cast<size_t>(unit)].tied && at != units.end();
    return prefetch_ && known && at + 1 != units.end() ? *(at + 1) : -1;
  }
  Order& order = phase_ == Phase::forward ? forward_ : backward_;
  // If this pass reads another unit than the known order says, the known order is dropped from here
  // on, and this pass records the new order.
  if (order.next == order.units.size() || order.units[order.next] != unit) {
    order.units.resize(order.next);
    order.units.push_back(unit);
  }
  ++order.next;
  return prefetch_ && order.next < order.units.size() ? order.units[order.next] : -1;
}

void ShardedParameters::gather(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  if (!unit.works.empty()) return;
  const auto purpose =
      phase_ == Phase::evaluation ? dist::Traffic::other : dist::Traffic::parameters;
  for (const int b : unit.buckets) {
    Tensor whole = Tensor::unallocated({partition_.bucket(b).elements}, partition_.dtype());
    // Allocated from the memory pool, because the communicator's memory is for permanent buffers.
    whole.attach(allocate(whole.bytes(), Category::parameters, communicator_.device()), 0);
    const dist::Range own = partition_.own_range(b);
    kernels::copy(current_context(whole.device()), whole.flat(own.begin, own.end),
                  partition_.held_values(b));
    unit.works.push_back(communicator_.all_gather(whole, partition_.call(purpose, b)));
    // The parameters are attached while the gather is in flight. enter() waits for the gather
    // before an operation reads the values.
    partition_.attach_bucket(b, whole.storage(), 0);
  }
}

void ShardedParameters::release(int index) {
  Unit& unit = units_[static_cast<size_t>(index)];
  if (unit.works.empty()) return;
  for (const int b : unit.buckets) partition_.attach_bucket(b, nullptr, 0);
  unit.works.clear();  // a gather in flight keeps its memory until it is done
}

void ShardedParameters::release_all() {
  for (int unit = 0; unit < static_cast<int>(units_.size()); ++unit) release(unit);
  last_ = -1;
}

dist::Work ShardedParameters::gather_updated(int) {
  release_all();  // gathered units still have the values before the update
  return {};
}

void ShardedParameters::begin_forward() {
  // Releases units that an evaluation has left gathered. The gathers of a micro-step then depend
  // only on the micro-step's own reads, which have the same order on every rank.
  release_all();
  phase_ = Phase::forward;
  forward_.next = 0;
}

void ShardedParameters::begin_backward() {
  phase_ = Phase::backward;
  backward_.next = 0;
  // Backward may begin with the unit that forward entered last. Because last_ is -1, backward
  // enters this unit again, and so the order in backward_ begins with this unit.
  last_ = -1;
}

void ShardedParameters::end_backward() {
  release_all();
  // Reads of parameters until the next micro-step belong to an evaluation.
  phase_ = Phase::evaluation;
}

}  // namespace tessera::optim
