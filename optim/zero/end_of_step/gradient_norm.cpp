#include "optim/zero/end_of_step/gradient_norm.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/cuda.h"
#include "core/ops/blocks.h"
#include "optim/kernels/square_sums.h"

namespace tessera::optim {

// Shards end at multiples of dist::block_elements. The kernels sum blocks of cpu::block_elements.
// The two numbers must be equal, so that no block spans two ranks.
static_assert(dist::block_elements == cpu::block_elements);

namespace {

constexpr int64_t f64_bytes = sizeof(double);

Tensor bytes_for(dist::Communicator& communicator, int64_t count, int64_t size) {
  return uninitialised_buffer(communicator, {count * size}, DType::u8, Category::communication);
}

}  // namespace

GradientNorm::GradientNorm(std::shared_ptr<dist::Communicator> communicator,
                           std::vector<Part> parts)
    : communicator_(std::move(communicator)), parts_(std::move(parts)) {
  for (const Part& part : parts_) {
    has_tables_ |= part.table != nullptr;
    if (part.partition == nullptr || std::ranges::count(partitions_, part.partition) > 0) continue;
    add_partition(*part.partition);
  }
  place_segments();
  // In a new optimizer, no rows of tables are touched, so blocks_ counts dense blocks only. After
  // add_param_group, blocks_ also counts the table blocks that the last step touched. The larger
  // count does no harm: it only makes partial_sums_ larger than needed.
  dense_blocks_ = blocks_;
  allocate(0);
  copy_segments();
}

void GradientNorm::add_partition(const Partition& partition) {
  partitions_.push_back(&partition);
  shard_firsts_.push_back(per_rank_);
  per_rank_ += partition.layout().shard_elements() / dist::block_elements;
}

// Blocks are numbered in the order of parts_ (parameters and tables) and not by bucket or shard, so
// that the order of addition depends on the model alone. In a table, only the touched blocks are
// numbered. Their sums are consecutive in sums_, so Segment::place() can treat the table as one
// shard of unlimited size.
void GradientNorm::place_segments() {
  segments_.clear();
  blocks_ = 0;
  int64_t table_first = per_rank_ * communicator_->size();
  for (const Part& part : parts_) {
    if (part.table != nullptr) {
      segments_.push_back({.begin = blocks_,
                           .first = 0,
                           .shard_blocks = std::numeric_limits<int64_t>::max(),
                           .shard_first = table_first});
      blocks_ += part.table->all_blocks();
      table_first += part.table->all_blocks();
      continue;
    }
    const dist::ParameterSlot& slot = part.partition->layout().slot(part.parameter);
    const dist::Bucket& bucket = part.partition->bucket(slot.bucket);
    const auto index = std::ranges::find(partitions_, part.partition) - partitions_.begin();
    segments_.push_back({.begin = blocks_,
                         .first = slot.offset / dist::block_elements,
                         .shard_blocks = bucket.shard_elements / dist::block_elements,
                         .shard_first = shard_firsts_[static_cast<size_t>(index)] +
                                        bucket.shard_offset / dist::block_elements});
    blocks_ += dist::blocks_of(slot.elements);
  }
}

void GradientNorm::allocate(int64_t table_blocks) {
  table_blocks_ = table_blocks;
  sums_ = partial_sums_ = table_ = {};  // freed before larger ones are allocated
  sums_ = bytes_for(*communicator_, per_rank_ * communicator_->size() + table_blocks, f64_bytes);
  const Device device = communicator_->device();
  // The CPU's kernel reads segments_ directly. A GPU needs a copy of segments_, and scratch memory.
  if (device.is_cpu()) return;
  constexpr int64_t per_sum = BlockSums::blocks_per_partial_sum;
  const int64_t most = dense_blocks_ + table_blocks;
  partial_sums_ = bytes_for(*communicator_, (most + per_sum - 1) / per_sum, f64_bytes);
  table_ = bytes_for(*communicator_, std::ssize(segments_), sizeof(BlockSums::Segment));
}

void GradientNorm::copy_segments() {
  if (!table_.defined()) return;
  cuda::copy_and_wait(communicator_->device().index, table_.raw(), segments_.data(),
                      table_.bytes());
}

// Each rank computes the sums of squares of the touched blocks that it owns. The ranks own
// ascending ranges of rows, so the gathered sums are in ascending order of blocks.
void GradientNorm::sum_tables() {
  int64_t most = 0;
  for (const Part& part : parts_) most += part.table != nullptr ? part.table->most_blocks() : 0;
  if (most > table_blocks_) allocate(most);
  place_segments();
  copy_segments();
  const Device device = communicator_->device();
  for (size_t i = 0; i < parts_.size(); ++i) {
    const Table* const table = parts_[i].table;
    if (table == nullptr) continue;
    const int64_t first = segments_[i].shard_first;
    const std::vector<int64_t>& counts = table->block_counts();
    const int64_t before =
        std::accumulate(counts.begin(), counts.begin() + communicator_->rank(), int64_t{0});
    const TouchedBlocks& touched = table->gradients().blocks();
    kernels::touched_square_sums(
        current_context(device),
        std::span(sums() + first + before, static_cast<size_t>(touched.block_count)), touched);
    const Tensor all = sums_.flat(first * f64_bytes, (first + table->all_blocks()) * f64_bytes);
    communicator_
        ->all_gather_v(all, in_elements(counts, f64_bytes),
                       table->info().call(dist::Traffic::norms))
        .wait();
  }
}

void GradientNorm::compute(StepScalars* scalars) {
  if (has_tables_) sum_tables();
  // Each rank computes the sums of squares of its shards' blocks, in order of partition and bucket.
  double* own = sums() + communicator_->rank() * per_rank_;
  const Context context = current_context(communicator_->device());
  for (const Partition* partition : partitions_) {
    for (const Tensor& gradients : partition->sums().all()) {
      const int64_t blocks = gradients.elements() / dist::block_elements;
      if (blocks == 0) continue;
      kernels::block_square_sums(context, std::span(own, static_cast<size_t>(blocks)), gradients);
      own += blocks;
    }
  }
  const Tensor dense = sums_.flat(0, per_rank_ * communicator_->size() * f64_bytes);
  communicator_->all_gather(dense, {dist::Traffic::norms, -1}).wait();
  // All ranks add the same block sums in the same order, so all ranks get the same bits without a
  // broadcast.
  kernels::add_block_sums(
      context, scalars,
      BlockSums{.values = sums(),
                .per_rank = per_rank_,
                .segments = table_.defined() ? static_cast<const BlockSums::Segment*>(table_.raw())
                                             : segments_.data(),
                .segment_count = std::ssize(segments_),
                .blocks = blocks_,
                .partial_sums =
                    partial_sums_.defined() ? static_cast<double*>(partial_sums_.raw()) : nullptr});
}

std::vector<double> GradientNorm::of_parts() const {
  const Tensor here = sums_.to_host();  // waits for the device
  const auto* const values = static_cast<const double*>(here.raw());
  std::vector<double> norms;
  for (size_t s = 0; s < segments_.size(); ++s) {
    const int64_t end = s + 1 < segments_.size() ? segments_[s + 1].begin : blocks_;
    double total = 0;
    for (int64_t number = segments_[s].begin; number < end; ++number) {
      total += values[segments_[s].place(number, per_rank_)];
    }
    norms.push_back(std::sqrt(total));
  }
  return norms;
}

}  // namespace tessera::optim
