#include "optim/gradient_norm.h"

#include <cmath>

#include "core/kernels.h"
#include "core/ops/blocks.h"

namespace tessera::optim {

// Shards end on the blocks that the kernels sum: the one is what makes the other exact.
static_assert(dist::block_elements == cpu::block_elements);

GradientNorm::GradientNorm(std::shared_ptr<dist::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void GradientNorm::add(const Partition& partition) {
  blocks_ += partition.layout().shard_elements() / dist::block_elements;
  const auto bytes = blocks_ * communicator_->size() * static_cast<int64_t>(sizeof(double));
  sums_ = {};  // before the larger one is allocated, so that both are never held
  sums_ = Tensor::unallocated({bytes}, DType::u8);
  sums_.attach(communicator_->allocate(bytes, Category::communication), 0);
}

double GradientNorm::compute(const std::vector<const Partition*>& partitions) {
  auto* sums = static_cast<double*>(sums_.raw());
  double* own = sums + communicator_->rank() * blocks_;
  for (const Partition* partition : partitions) {
    const Tensor& gradients = partition->accumulator();
    const int64_t blocks = gradients.elements() / dist::block_elements;
    if (blocks == 0) continue;
    kernels::block_square_sums(current_context(gradients.device()),
                               std::span(own, static_cast<size_t>(blocks)), gradients);
    own += blocks;
  }
  communicator_->all_gather(sums_, {dist::Traffic::norms, -1}).wait();
  double total = 0;
  int64_t first_block = 0;
  for (const Partition* partition : partitions) {
    for (size_t i = 0; i < partition->parameters().size(); ++i) {
      total = parameter_sum(*partition, static_cast<int>(i), first_block, total);
    }
    first_block += partition->accumulator().elements() / dist::block_elements;
  }
  return std::sqrt(total);
}

double GradientNorm::parameter_sum(const Partition& partition, int parameter, int64_t first_block,
                                   double total) const {
  const auto* sums = static_cast<const double*>(sums_.raw());
  const dist::ParameterSlot& slot = partition.layout().slot(parameter);
  const dist::Bucket& bucket = partition.bucket(slot.bucket);
  const int64_t shard_blocks = bucket.shard_elements / dist::block_elements;
  const int64_t begin = slot.offset / dist::block_elements;
  const int64_t end = dist::blocks_of(slot.offset + slot.elements);
  const int64_t shard_first = first_block + bucket.shard_offset / dist::block_elements;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t owner = block / shard_blocks;
    total += sums[owner * blocks_ + shard_first + block % shard_blocks];
  }
  return total;
}

}  // namespace tessera::optim
