#include "optim/plan.h"

#include <algorithm>

#include "optim/gradient_policy.h"

namespace tessera::optim {
namespace {

constexpr int64_t f32_bytes = 4;
constexpr int64_t f64_bytes = 8;

int64_t& at(Plan& plan, dist::Traffic purpose) {
  return plan.traffic[static_cast<size_t>(purpose)];
}

// What a stage 2 rank keeps of full gradients: the ring, and the slots of tied parameters.
int64_t ring_elements(const dist::ShardLayout& layout) {
  int64_t unshared = 0;
  int64_t tied_elements = 0;
  for (const dist::Bucket& bucket : layout.buckets()) {
    if (bucket.shared) {
      tied_elements += bucket.elements;
    } else {
      ++unshared;
    }
  }
  const int64_t slots = std::min<int64_t>(unshared, RingGradients::first_slots);
  return slots * layout.largest_unshared_bucket() + tied_elements;
}

int64_t gradient_elements(const PlanInput& input, const dist::ShardLayout& layout) {
  // The sum over micro-batches needs a place of its own at every stage, because the next
  // micro-batch's gradient is written where the last one's was.
  int64_t elements = layout.shard_elements();
  elements += input.stage == 2 ? ring_elements(layout) : layout.flat_elements();
  if (input.no_sync && input.batch.micro_steps(input.ranks) > 1) elements += layout.flat_elements();
  return elements;
}

int64_t communication_bytes(const PlanInput& input, const dist::ShardLayout& layout) {
  int64_t bytes = input.ranks > 1 ? dist::mpi_staging_bytes(input.ranks) : 0;
  bytes += layout.flat_elements() / dist::block_elements * f64_bytes;               // norms
  bytes += input.ranks * input.batch.micro_steps(input.ranks) * f32_bytes;          // losses
  if (input.reduction == Reduction::fast) {
    int64_t largest = 0;
    for (const dist::Bucket& bucket : layout.buckets()) {
      largest = std::max(largest, bucket.shard_elements);
    }
    bytes += largest * f32_bytes;
  }
  return bytes;
}

// Times that `rank` sends its gradient in a step.
int64_t gradient_sends(const PlanInput& input, int64_t rank) {
  const int64_t micro_batches = input.batch.micro_batches();
  if (input.no_sync) return rank < micro_batches ? 1 : 0;
  // Micro-batches rank, rank + N, rank + 2N, ... below M.
  return rank < micro_batches ? (micro_batches - rank - 1) / input.ranks + 1 : 0;
}

}  // namespace

int64_t Plan::sent() const {
  int64_t sum = 0;
  for (const int64_t bytes : traffic) sum += bytes;
  return sum;
}

std::vector<dist::LayoutParameter> layout_parameters(const nn::Module& model) {
  std::vector<dist::LayoutParameter> list;
  for (const auto& [name, parameter, shared] : model.named_parameters()) {
    list.push_back({name, parameter.elements(), shared});
  }
  return list;
}

Plan plan(const PlanInput& input, int64_t rank) {
  TESSERA_CHECK(input.stage >= 0 && input.stage <= 2, "plan: stage {}, expected 0, 1 or 2",
                input.stage);
  TESSERA_CHECK(rank >= 0 && rank < input.ranks, "plan: rank {} of {}", rank, input.ranks);
  input.batch.validate();
  const dist::ShardLayout layout(input.parameters, input.ranks,
                                 std::max<int64_t>(1, input.bucket_bytes / f32_bytes));
  const int64_t flat = layout.flat_elements();
  const int64_t shard = layout.shard_elements();
  const int64_t others = input.ranks - 1;

  Plan plan;
  plan.rank = rank;
  plan.parameters = flat * f32_bytes;
  plan.gradients = gradient_elements(input, layout) * f32_bytes;
  plan.optimizer_state = input.state_tensors * (input.stage == 0 ? flat : shard) * f32_bytes;
  plan.communication = communication_bytes(input, layout);
  plan.padding = layout.padding_elements() * f32_bytes;

  // A rank sends every shard but its own, and later its own to everybody else.
  at(plan, dist::Traffic::gradients) =
      gradient_sends(input, rank) * (flat - shard) * f32_bytes +
      (input.stage == 0 ? others * shard * f32_bytes : 0);
  at(plan, dist::Traffic::parameters) = input.stage == 0 ? 0 : others * shard * f32_bytes;
  at(plan, dist::Traffic::norms) = others * (shard / dist::block_elements) * f64_bytes;
  at(plan, dist::Traffic::losses) = others * input.batch.micro_steps(input.ranks) * f32_bytes;
  return plan;
}

}  // namespace tessera::optim
