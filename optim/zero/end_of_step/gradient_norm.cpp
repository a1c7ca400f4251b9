#include "optim/zero/end_of_step/gradient_norm.h"

#include <cmath>

#include "core/cuda.h"
#include "core/ops/blocks.h"
#include "optim/kernels/square_sums.h"

namespace tessera::optim {

// Shards end at kernel blocks, so no block's sum straddles two ranks.
static_assert(dist::block_elements == cpu::block_elements);

namespace {

constexpr int64_t f64_bytes = sizeof(double);

Tensor bytes_for(dist::Communicator& communicator, int64_t count, int64_t size) {
  Tensor bytes = Tensor::unallocated({count * size}, DType::u8);
  bytes.attach(communicator.allocate(bytes.bytes(), Category::communication), 0);
  return bytes;
}

}  // namespace

GradientNorm::GradientNorm(std::shared_ptr<dist::Communicator> communicator,
                           std::vector<const Partition*> partitions)
    : communicator_(std::move(communicator)), partitions_(std::move(partitions)) {
  for (const Partition* partition : partitions_) add_segments(*partition);
  sums_ = bytes_for(*communicator_, per_rank_ * communicator_->size(), f64_bytes);
  const Device device = communicator_->device();
  // The CPU's kernel reads segments_ directly. A GPU needs a copy of segments_, and scratch.
  if (device.is_cpu()) return;
  constexpr int64_t per_sum = BlockSums::blocks_per_partial_sum;
  partial_sums_ = bytes_for(*communicator_, (blocks_ + per_sum - 1) / per_sum, f64_bytes);
  table_ = bytes_for(*communicator_, std::ssize(segments_), sizeof(BlockSums::Segment));
  cuda::copy_and_wait(device.index, table_.raw(), segments_.data(), table_.bytes());
}

void GradientNorm::add_segments(const Partition& partition) {
  const dist::ShardLayout& layout = partition.layout();
  for (size_t i = 0; i < partition.parameters().size(); ++i) {
    const dist::ParameterSlot& slot = layout.slot(static_cast<int>(i));
    const dist::Bucket& bucket = partition.bucket(slot.bucket);
    // Blocks are numbered in parameter order and not by bucket or shard, so that the order of
    // addition depends on the model alone.
    segments_.push_back({.begin = blocks_,
                         .first = slot.offset / dist::block_elements,
                         .shard_blocks = bucket.shard_elements / dist::block_elements,
                         .shard_first = per_rank_ + bucket.shard_offset / dist::block_elements});
    blocks_ += dist::blocks_of(slot.elements);
  }
  per_rank_ += layout.shard_elements() / dist::block_elements;
}

void GradientNorm::compute(StepScalars* scalars) {
  auto* const sums = static_cast<double*>(sums_.raw());
  // Each rank sums the blocks of its shards, in order of partitions and their buckets.
  double* own = sums + communicator_->rank() * per_rank_;
  const Context context = current_context(communicator_->device());
  for (const Partition* partition : partitions_) {
    const Tensor& gradients = partition->accumulator();
    const int64_t blocks = gradients.elements() / dist::block_elements;
    if (blocks == 0) continue;
    kernels::block_square_sums(context, std::span(own, static_cast<size_t>(blocks)), gradients);
    own += blocks;
  }
  communicator_->all_gather(sums_, {dist::Traffic::norms, -1}).wait();
  // All ranks add the same sums in the same order, so they get the same bits without a broadcast.
  kernels::add_block_sums(
      context, scalars,
      BlockSums{.values = sums,
                .per_rank = per_rank_,
                .segments = table_.defined()
                                ? static_cast<const BlockSums::Segment*>(table_.raw())
                                : segments_.data(),
                .segment_count = std::ssize(segments_),
                .blocks = blocks_,
                .partial_sums = partial_sums_.defined()
                                    ? static_cast<double*>(partial_sums_.raw())
                                    : nullptr});
}

std::vector<double> GradientNorm::of_parameters() const {
  const Tensor here = sums_.to_host();  // waits for the device
  const auto* const sums = static_cast<const double*>(here.raw());
  std::vector<double> norms;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const int64_t end = s + 1 < segments_.size() ? segments_[s + 1].begin : blocks_;
    double total = 0;
    for (int64_t number = segments_[s].begin; number < end; ++number) {
      total += sums[segments_[s].place(number, per_rank_)];
    }
    norms.push_back(std::sqrt(total));
  }
  return norms;
}

}  // namespace tessera::optim
