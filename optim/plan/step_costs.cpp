#include "optim/plan/step_costs.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace tessera::optim {
namespace {

constexpr double f32_bytes = 4;
constexpr double f64_bytes = 8;

double size_of(DType dtype) { return static_cast<double>(dtype_size(dtype)); }

// Returns the seconds to send `piece_bytes` to every other rank.
double transfer_seconds(const PlanInput& input, const MachineRates& rates, double piece_bytes) {
  if (input.ranks == 1) return 0;
  const double others = static_cast<double>(input.ranks - 1);
  const double neighbours = static_cast<double>(std::min(rates.ranks_per_node, input.ranks) - 1);
  const double node_bandwidth = rates.node_bandwidth > 0 ? rates.node_bandwidth : rates.bandwidth;
  const double sending = neighbours / node_bandwidth + (others - neighbours) / rates.bandwidth;
  return rates.latency * others + piece_bytes * sending;
}

// Returns the bytes that an update moves per element. The update reads the gradient sum twice (once
// for the norm), and reads and writes f32 weights and optimizer state. If the parameters have 16
// bits, the update also writes them.
double update_bytes(const PlanInput& input, const PlanGroup& group) {
  const double rounded = group.dtype == DType::f32 ? 0 : size_of(group.dtype);
  const double kept = static_cast<double>(1 + input.state_tensors);
  return 2 * size_of(group.sum_dtype) + 2 * f32_bytes * kept + rounded;
}

class Costs {
 public:
  Costs(const PlanInput& input, const MicroBatchWork& work, const MachineRates& rates)
      : input_(input),
        work_(work),
        rates_(rates),
        groups_(plan_groups(input)),
        first_trainable_(first_trainable(input)),
        sums_locally_(input.no_sync && input.batch.micro_steps(input.ranks) > 1) {}

  StepCosts make() {
    for (size_t g = 0; g < groups_.size(); ++g) {
      add_buckets(g);
      if (input_.stage == 3) add_blocks(g);
    }
    std::stable_sort(costs_.buckets.begin(), costs_.buckets.end(),
                     [](const BucketCost& a, const BucketCost& b) {
                       return a.registered > b.registered;
                     });
    share_work();
    add_end();
    return std::move(costs_);
  }

 private:
  void add_buckets(size_t g) {
    const PlanGroup& group = groups_[g];
    const auto& buckets = group.layout.buckets();
    size_t block = 0;
    for (size_t b = 0; b < buckets.size(); ++b) {
      if (input_.stage == 3 && group.blocks[block].end_bucket <= static_cast<int>(b)) ++block;
      BucketCost cost{.group = g,
                      .block = block,
                      .registered = group.first_registered(buckets[b]),
                      .tied = buckets[b].shared,
                      .trainable = group.trainable,
                      .reached = group.last_registered(buckets[b]) >= first_trainable_};
      if (group.trainable) add_update(cost, group, buckets[b]);
      for (const int p : buckets[b].parameters) {
        cost.elements += static_cast<double>(group.layout.slot(p).elements);
      }
      costs_.buckets.push_back(cost);
    }
  }

  void add_update(BucketCost& cost, const PlanGroup& group, const dist::Bucket& bucket) {
    const double elements = static_cast<double>(bucket.elements);
    const double shard = static_cast<double>(bucket.shard_elements);
    const double bytes = size_of(group.dtype);
    const double sum = size_of(group.sum_dtype);
    const bool everything = input_.stage == 0;
    // Adding a contribution reads the contribution, and reads and writes the sum.
    const double adding = elements * (bytes + 2 * sum);
    if (sums_locally_) cost.local_addition.bytes = adding;
    cost.exchange = {transfer_seconds(input_, rates_, shard * (sums_locally_ ? sum : bytes)),
                     {.bytes = sums_locally_ ? elements * 3 * sum : adding}};
    cost.update.bytes = (everything ? elements : shard) * update_bytes(input_, group);
    if (input_.stage < 3) {
      cost.gather.seconds = transfer_seconds(input_, rates_, shard * (everything ? sum : bytes));
    }
  }

  void add_blocks(size_t g) {
    const PlanGroup& group = groups_[g];
    std::vector<BlockCost> blocks;
    for (const PlanBlock& block : group.blocks) {
      BlockCost cost{.tied = block.tied, .reached = block.read_by_backward};
      for (int b = block.first_bucket; b < block.end_bucket; ++b) {
        const dist::Bucket& bucket = group.layout.buckets()[static_cast<size_t>(b)];
        const double piece = static_cast<double>(bucket.shard_elements) * size_of(group.dtype);
        cost.gather.seconds += transfer_seconds(input_, rates_, piece);
      }
      blocks.push_back(cost);
    }
    costs_.blocks.push_back(std::move(blocks));
  }

  // Divides a micro-batch's work among the buckets in proportion to their elements.
  void share_work() {
    double all = 0;
    double untied = 0;
    for (const BucketCost& bucket : costs_.buckets) {
      all += bucket.elements;
      if (!bucket.tied) untied += bucket.elements;
    }
    const Cost forward = Cost{work_.flops, work_.bytes} * (1.0 / 3);
    // The work of recomputing forward within backward. Its bytes are assumed to be proportional to
    // its operations. The output head (a tied bucket) is not recomputed.
    const Cost again = forward * (work_.flops > 0 ? work_.recomputed_flops / forward.flops : 0);
    for (BucketCost& bucket : costs_.buckets) {
      if (all == 0) return;
      bucket.forward = forward * (bucket.elements / all);
      if (!bucket.reached) continue;
      // Backward has one matrix product for the input gradient. Trained parameters need a second
      // product for the weight gradient.
      bucket.backward = bucket.forward * (bucket.trainable ? 2 : 1);
      if (!bucket.tied) bucket.backward += again * (bucket.elements / untied);
    }
  }

  void add_end() {
    double blocks = 0;
    int64_t parameters = 0;
    for (const PlanGroup& group : groups_) {
      if (!group.trainable) continue;
      blocks += static_cast<double>(group.layout.shard_elements() / dist::block_elements);
      parameters += std::ssize(group.registered);
    }
    const double micro_steps = static_cast<double>(input_.batch.micro_steps(input_.ranks));
    const double flags = 1 + std::ceil((micro_steps + static_cast<double>(parameters)) / 8);
    for (const double bytes : {blocks * f64_bytes, micro_steps * f32_bytes, flags}) {
      costs_.end.seconds += transfer_seconds(input_, rates_, bytes);
    }
  }

  const PlanInput& input_;
  const MicroBatchWork& work_;
  const MachineRates& rates_;
  const std::vector<PlanGroup> groups_;
  const int64_t first_trainable_;
  const bool sums_locally_;
  StepCosts costs_;
};

}  // namespace

StepCosts step_costs(const PlanInput& input, const MicroBatchWork& work,
                     const MachineRates& rates) {
  return Costs(input, work, rates).make();
}

}  // namespace tessera::optim
