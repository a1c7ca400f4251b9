#include "optim/gradient_norm.h"

#include <algorithm>
#include <cmath>

#include "core/kernels.h"
#include "core/ops/blocks.h"

namespace tessera::optim {

// Shards end on the blocks that the kernels sum: the one is what makes the other exact.
static_assert(dist::block_elements == cpu::block_elements);

GradientNorm::GradientNorm(std::shared_ptr<dist::Communicator> communicator)
    : communicator_(std::move(communicator)) {}

void GradientNorm::add(const Partition& partition) {
  entries_.push_back({&partition, blocks_});
  blocks_ += partition.layout().shard_elements() / dist::block_elements;
  const auto bytes = blocks_ * communicator_->size() * static_cast<int64_t>(sizeof(double));
  sums_ = {};  // before the larger one is allocated, so that both are never held
  sums_ = dist::HostBuffer(bytes, DType::u8, *communicator_);
}

double GradientNorm::compute() {
  auto* sums = static_cast<double*>(sums_.values().raw());
  double* own = sums + communicator_->rank() * blocks_;
  for (const Entry& entry : entries_) {
    const Tensor& gradients = entry.partition->accumulator();
    const int64_t blocks = gradients.elements() / dist::block_elements;
    if (blocks == 0) continue;
    kernels::block_square_sums(current_context(gradients.device()),
                               std::span(own, static_cast<size_t>(blocks)), gradients);
    own += blocks;
  }
  sums_.all_gather(*communicator_, dist::Traffic::norms).wait();
  sums_.fetch();
  double total = 0;
  for (const Entry& entry : entries_) {
    for (size_t i = 0; i < entry.partition->parameters().size(); ++i) {
      total = parameter_sum(entry, static_cast<int>(i), total);
    }
  }
  return std::sqrt(total);
}

double GradientNorm::of_parameter(const Partition& partition, int parameter) const {
  const auto entry = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& candidate) {
    return candidate.partition == &partition;
  });
  return std::sqrt(parameter_sum(*entry, parameter, 0));
}

double GradientNorm::parameter_sum(const Entry& entry, int parameter, double total) const {
  const Partition& partition = *entry.partition;
  const auto* sums = static_cast<const double*>(sums_.values().raw());
  const dist::ParameterSlot& slot = partition.layout().slot(parameter);
  const dist::Bucket& bucket = partition.bucket(slot.bucket);
  const int64_t shard_blocks = bucket.shard_elements / dist::block_elements;
  const int64_t begin = slot.offset / dist::block_elements;
  const int64_t end = dist::blocks_of(slot.offset + slot.elements);
  const int64_t shard_first = entry.first_block + bucket.shard_offset / dist::block_elements;
  for (int64_t block = begin; block < end; ++block) {
    const int64_t owner = block / shard_blocks;
    total += sums[owner * blocks_ + shard_first + block % shard_blocks];
  }
  return total;
}

}  // namespace tessera::optim
