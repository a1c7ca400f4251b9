#include "optim/partition.h"

#include <algorithm>

#include "core/autograd.h"
#include "core/kernels.h"

namespace tessera::optim {
namespace {

std::vector<dist::LayoutParameter> layout_list(const std::vector<nn::NamedParameter>& parameters) {
  std::vector<dist::LayoutParameter> list;
  for (const auto& [name, parameter, shared] : parameters) {
    TESSERA_CHECK(parameter.dtype() == DType::f32,
                  "optimizer: parameter '{}' has dtype {}, expected f32", name,
                  dtype_name(parameter.dtype()));
    list.push_back({name, parameter.elements(), shared});
  }
  return list;
}

}  // namespace

Tensor flat_buffer(dist::Communicator& communicator, int64_t elements, Category category) {
  Tensor flat = Tensor::unallocated({elements}, DType::f32);
  flat.attach(communicator.allocate(flat.bytes(), category), 0);
  if (elements > 0) kernels::fill(current_context(flat.device()), flat, 0.0f);
  return flat;
}

Partition::Partition(std::vector<nn::NamedParameter> parameters, std::vector<int> groups,
                     dist::Communicator& communicator, int64_t bucket_bytes, uint64_t seed)
    : parameters_(std::move(parameters)),
      groups_(std::move(groups)),
      rank_(communicator.rank()),
      layout_(layout_list(parameters_), communicator.size(),
              std::max<int64_t>(1, bucket_bytes / dtype_size(DType::f32))),
      values_(flat_buffer(communicator, layout_.flat_elements(), Category::parameters)),
      accumulator_(flat_buffer(communicator, layout_.shard_elements(), Category::gradients)) {
  lay_out(seed);
}

void Partition::lay_out(uint64_t seed) {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const auto& [name, parameter, shared] = parameters_[i];
    const dist::ParameterSlot& slot = layout_.slot(static_cast<int>(i));
    const int64_t first = bucket(slot.bucket).offset + slot.offset;
    Tensor target = values_.flat(first, first + slot.elements);
    Tensor tensor = parameter.tensor();
    if (tensor.allocated()) {
      const InUse in_use({&tensor});  // an earlier optimizer's last gather may be under way
      kernels::copy(current_context(target.device()), target, tensor.view({slot.elements}));
    } else {
      nn::initialize(parameter.initializer(), seed, name, 0, target.values<float>());
    }
    tensor.attach(values_.storage(), first * dtype_size(DType::f32));
    parameter.leaf().name = name;
  }
}

Tensor Partition::bucket_of(const Tensor& flat, int index) const {
  const dist::Bucket& b = bucket(index);
  return flat.flat(b.offset, b.offset + b.elements);
}

Tensor Partition::shard_of(const Tensor& shards, int index) const {
  const dist::Bucket& b = bucket(index);
  return shards.flat(b.shard_offset, b.shard_offset + b.shard_elements);
}

std::vector<UpdateSegment> Partition::segments(int index, const dist::Range& range) const {
  std::vector<UpdateSegment> list;
  for (const int parameter : bucket(index).parameters) {
    const dist::ParameterSlot& slot = layout_.slot(parameter);
    // To the end of its last block: the gap there has zero gradients, weights and state, and
    // stays so.
    const int64_t begin = std::max(range.begin, slot.offset);
    const int64_t whole = dist::blocks_of(slot.elements) * dist::block_elements;
    const int64_t end = std::min(range.end, slot.offset + whole);
    if (begin >= end) continue;
    const int group = groups_[static_cast<size_t>(parameter)];
    if (!list.empty() && list.back().group == group && list.back().end == begin - range.begin) {
      list.back().end = end - range.begin;
    } else {
      list.push_back({begin - range.begin, end - range.begin, group});
    }
  }
  return list;
}

void Partition::clear_gaps(const Tensor& gradient, int index) const {
  const auto clear = [&gradient](int64_t begin, int64_t end) {
    if (begin < end) {
      kernels::fill(current_context(gradient.device()), gradient.flat(begin, end), 0.0f);
    }
  };
  int64_t covered = 0;
  for (const int parameter : bucket(index).parameters) {
    const dist::ParameterSlot& slot = layout_.slot(parameter);
    clear(covered, slot.offset);
    covered = slot.offset + slot.elements;
  }
  clear(covered, bucket(index).elements);
}

std::string Partition::owner_ranges(int index) const {
  constexpr int64_t most = 16;  // more would make the trace unreadable, and large
  std::string text;
  for (int64_t rank = 0; rank < std::min(layout_.ranks(), most); ++rank) {
    const dist::Range range = layout_.shard(index, rank);
    text += fmt::format("{}rank {} [{}, {})", rank == 0 ? "" : ", ", rank, range.begin, range.end);
  }
  return layout_.ranks() > most ? text + ", ..." : text;
}

}  // namespace tessera::optim
