#include "optim/plan/step_time.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "core/error.h"
#include "optim/plan/step_costs.h"

namespace tessera::optim {
namespace {

// The two time lines of a rank: computing and communication (the channel).
class Clock {
 public:
  Clock(const MachineRates& rates, const PlanInput& input)
      : rates_(rates),
        alone_(input.ranks == 1),
        overlap_(input.overlap && !rates.shared_cores) {}

  void compute(const Cost& cost) {
    const double seconds = seconds_of(cost);
    now_ += seconds;
    time_.compute += seconds;
    count(cost);
  }
  void update(const Cost& cost) {
    compute(cost);
    time_.update_bytes += cost.bytes;
  }
  void wait(double until) { now_ = std::max(now_, until); }

  /// Starts a transfer, and returns its end time.
  double launch(const Transfer& transfer) {
    if (alone_) {
      compute(transfer.additions);
      return now_;
    }
    const double seconds = transfer.seconds + seconds_of(transfer.additions);
    channel_ = std::max(channel_, now_) + seconds;
    time_.communication += seconds;
    count(transfer.additions);
    if (!overlap_) wait(channel_);
    return channel_;
  }

  StepTime time() const {
    StepTime time = time_;
    time.exposed = now_ - time.compute;
    return time;
  }

 private:
  double seconds_of(const Cost& cost) const {
    const bool counts = rates_.memory_bandwidth > 0;
    return cost.flops / rates_.flops + (counts ? cost.bytes / rates_.memory_bandwidth : 0);
  }
  void count(const Cost& cost) {
    time_.flops += cost.flops;
    time_.moved_bytes += cost.bytes;
  }

  const MachineRates& rates_;
  bool alone_;
  bool overlap_;
  double now_ = 0;      // the time that computing has reached
  double channel_ = 0;  // the time at which the channel is free
  StepTime time_;
};

// Tracks which blocks of one parameter group (plan_groups.h) are gathered, at stage 3.
class Gathering {
 public:
  explicit Gathering(const std::vector<BlockCost>& blocks)
      : blocks_(blocks), there_(blocks.size(), absent) {}

  /// Gathers `block` if it is absent, and waits until it is gathered. If `block` is not the current
  /// block, also releases the current block (a tied block stays gathered), makes `block` the
  /// current block, and starts to gather the next block (in backward, only if backward reads it).
  /// Forward goes from higher to lower block indices, backward from lower to higher indices.
  void enter(Clock& clock, size_t block, bool forward) {
    gather(clock, block);
    clock.wait(there_[block]);
    if (block == current_) return;
    if (current_ < blocks_.size() && !blocks_[current_].tied) there_[current_] = absent;
    current_ = block;
    if (forward && block > 0) gather(clock, block - 1);
    const size_t next = block + 1;
    if (!forward && next < blocks_.size() && blocks_[next].reached) gather(clock, next);
  }
  /// Begins backward at the block where forward has ended.
  void turn(Clock& clock) {
    const size_t block = std::exchange(current_, blocks_.size());
    if (block < blocks_.size()) enter(clock, block, false);
  }
  void release() {
    there_.assign(there_.size(), absent);
    current_ = blocks_.size();
  }

 private:
  static constexpr double absent = -1;

  void gather(Clock& clock, size_t block) {
    if (there_[block] == absent) there_[block] = clock.launch(blocks_[block].gather);
  }

  const std::vector<BlockCost>& blocks_;
  std::vector<double> there_;  // the time at which each block is gathered, or absent
  size_t current_ = blocks_.size();
};

class Step {
 public:
  Step(const PlanInput& input, const StepCosts& costs, const MachineRates& rates)
      : input_(input),
        costs_(costs),
        clock_(rates, input),
        reduced_(costs.buckets.size()),
        gathered_(costs.buckets.size()) {
    size_t groups = 0;
    for (const BucketCost& bucket : costs.buckets) groups = std::max(groups, bucket.group + 1);
    rings_.resize(groups);
    for (const auto& blocks : costs.blocks) gatherings_.emplace_back(blocks);
  }

  StepTime run(int64_t micro_steps) {
    update();
    for (int64_t j = 0; j < micro_steps; ++j) {
      forward(j == 0);
      backward(j + 1 == micro_steps, micro_steps);
    }
    for (const double reduced : reduced_) clock_.wait(reduced);
    clock_.wait(clock_.launch(costs_.end));
    return clock_.time();
  }

 private:
  // Returns a reference to the time at which the memory for a bucket's gradient is free. After the
  // caller has started the exchange of this gradient, the caller sets the time to the end of the
  // exchange. Usually each bucket has its own memory. At stages 2 and 3, the untied buckets of a
  // group use the two slots of the group's ring in turn, and each call takes the next slot.
  double& place(size_t index) {
    const BucketCost& bucket = costs_.buckets[index];
    if (input_.stage < 2 || bucket.tied) return reduced_[index];
    Ring& ring = rings_[bucket.group];
    return ring.free[std::exchange(ring.next, 1 - ring.next)];
  }

  void update() {
    const bool gathers_sums = input_.stage == 0;
    const size_t count = costs_.buckets.size();
    // The last bucket comes first, because forward uses it first.
    for (size_t i = count; gathers_sums && i-- > 0;) {
      gathered_[i] = clock_.launch(costs_.buckets[i].gather);
    }
    for (size_t i = count; i-- > 0;) {
      clock_.wait(gathered_[i]);
      clock_.update(costs_.buckets[i].update);
      if (!gathers_sums) gathered_[i] = clock_.launch(costs_.buckets[i].gather);
    }
  }

  void forward(bool first) {
    for (Gathering& gathering : gatherings_) gathering.release();
    for (size_t i = costs_.buckets.size(); i-- > 0;) {
      const BucketCost& bucket = costs_.buckets[i];
      if (first) clock_.wait(gathered_[i]);
      if (input_.stage == 3) gatherings_[bucket.group].enter(clock_, bucket.block, true);
      if (!bucket.tied) clock_.compute(bucket.forward);
    }
    for (const BucketCost& bucket : costs_.buckets) {
      if (bucket.tied) clock_.compute(bucket.forward);
    }
  }

  void backward(bool last, int64_t micro_steps) {
    for (const BucketCost& bucket : costs_.buckets) {
      if (bucket.tied) clock_.compute(bucket.backward);
    }
    for (Gathering& gathering : gatherings_) gathering.turn(clock_);
    const bool sums_locally = input_.no_sync && micro_steps > 1;
    for (size_t i = 0; i < costs_.buckets.size(); ++i) {
      const BucketCost& bucket = costs_.buckets[i];
      if (!bucket.reached) continue;
      if (input_.stage == 3 && costs_.blocks[bucket.group][bucket.block].reached) {
        gatherings_[bucket.group].enter(clock_, bucket.block, false);
      }
      if (!bucket.trainable) {
        clock_.compute(bucket.backward);
        continue;
      }
      double& free = place(i);
      clock_.wait(free);
      if (!bucket.tied) clock_.compute(bucket.backward);
      clock_.compute(bucket.local_addition);
      if (!sums_locally || last) reduced_[i] = free = clock_.launch(bucket.exchange);
    }
  }

  struct Ring {
    std::array<double, 2> free{};  // the time at which each slot is free
    size_t next = 0;
  };

  const PlanInput& input_;
  const StepCosts& costs_;
  Clock clock_;
  std::vector<double> reduced_;    // the time at which each bucket's exchange ends
  // The time at which each bucket's gradient sum (stage 0) or parameters (stages 1 and 2) are
  // gathered.
  std::vector<double> gathered_;
  std::vector<Ring> rings_;        // one per group
  std::vector<Gathering> gatherings_;
};

void check(const PlanInput& input, const MachineRates& rates) {
  const auto positive = [](const char* what, double value) {
    if (!(std::isfinite(value) && value > 0)) {
      fail_input("{} is {}, expected a number greater than 0", what, value);
    }
  };
  const auto not_negative = [](const char* what, double value) {
    if (!(std::isfinite(value) && value >= 0)) {
      fail_input("{} is {}, expected a number of at least 0", what, value);
    }
  };
  positive("flops", rates.flops);
  if (input.ranks > 1) positive("bandwidth", rates.bandwidth);
  not_negative("latency", rates.latency);
  not_negative("memory bandwidth", rates.memory_bandwidth);
  not_negative("bandwidth within a node", rates.node_bandwidth);
  if (rates.ranks_per_node < 1) {
    fail_input("ranks per node are {}, expected at least 1", rates.ranks_per_node);
  }
}

}  // namespace

StepTime step_time(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates) {
  check(input, rates);
  const StepCosts costs = step_costs(input, work, rates);
  // After a few micro-steps, each further micro-step makes the step longer by the same time. So for
  // each micro-step above 12, the difference between simulations of 12 and 11 micro-steps is added.
  constexpr int64_t most_simulated = 12;
  const int64_t micro_steps = input.batch.micro_steps(input.ranks);
  const int64_t simulated = std::min(micro_steps, most_simulated);
  StepTime time = Step(input, costs, rates).run(simulated);
  if (micro_steps == simulated) return time;
  const StepTime before = Step(input, costs, rates).run(simulated - 1);
  const auto extend = [&](double StepTime::*field) {
    time.*field += static_cast<double>(micro_steps - simulated) * (time.*field - before.*field);
  };
  for (const auto field : {&StepTime::compute, &StepTime::communication, &StepTime::exposed,
                           &StepTime::flops, &StepTime::moved_bytes}) {
    extend(field);
  }
  return time;
}

}  // namespace tessera::optim
