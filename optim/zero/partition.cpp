#include "optim/zero/partition.h"

#include <algorithm>

#include "core/assign.h"
#include "core/ops/fill.h"

namespace tessera::optim {
namespace {

DType common_dtype(const std::vector<PlacedParameter>& parameters) {
  const DType dtype = parameters.empty() ? DType::f32 : parameters[0].named.parameter.dtype();
  for (const auto& placed : parameters) {
    const auto& [name, parameter, shared, block] = placed.named;
    TESSERA_CHECK(parameter.dtype() == dtype && is_float(dtype),
                  "optimizer: parameter '{}' has dtype {}, expected {}", name,
                  dtype_name(parameter.dtype()), is_float(dtype) ? dtype_name(dtype) : "a float");
  }
  return dtype;
}

std::vector<dist::LayoutParameter> layout_list(const std::vector<PlacedParameter>& parameters,
                                               bool blocks) {
  std::vector<dist::LayoutParameter> list;
  for (const auto& placed : parameters) {
    const auto& [name, parameter, shared, block] = placed.named;
    // Only stage 3 gathers the parameters of one model block at a time. At other stages a bucket
    // may span several model blocks.
    list.push_back({name, parameter.elements(), shared, blocks ? block : -1});
  }
  return list;
}

}  // namespace

Tensor uninitialised_buffer(dist::Communicator& communicator, const Shape& shape, DType dtype,
                            Category category) {
  Tensor buffer = Tensor::unallocated(shape, dtype);
  buffer.attach(communicator.allocate(buffer.bytes(), category), 0);
  return buffer;
}

Tensor flat_buffer(dist::Communicator& communicator, int64_t elements, DType dtype,
                   Category category) {
  const Tensor flat = uninitialised_buffer(communicator, {elements}, dtype, category);
  // Gaps and padding are zeroed too, because norms and updates read whole blocks of 256 elements.
  if (elements > 0) kernels::fill(current_context(flat.device()), flat, 0.0f);
  return flat;
}

Partition::Partition(std::vector<PlacedParameter> parameters, dist::Communicator& communicator,
                     const PartitionOptions& options)
    : parameters_(std::move(parameters)),
      dtype_(common_dtype(parameters_)),
      trainable_(!parameters_.empty() && parameters_[0].named.parameter.trainable()),
      sharded_(options.sharded),
      rank_(communicator.rank()),
      layout_(layout_list(parameters_, options.sharded), communicator.size(),
              std::max<int64_t>(1, options.bucket_bytes / dtype_size(dtype_))),
      values_(flat_buffer(communicator,
                          sharded_ ? layout_.shard_elements() : layout_.flat_elements(), dtype_,
                          Category::parameters)) {
  if (!trainable_) return;
  std::vector<int64_t> shards;
  for (const dist::Bucket& bucket : layout_.buckets()) shards.push_back(bucket.shard_elements);
  sums_ = std::make_unique<BucketMemory>(communicator, shards, options.sum_dtype);
}

int64_t Partition::first_registration(int index) const {
  int64_t first = parameter(bucket(index).parameters.front()).registration;
  for (const int p : bucket(index).parameters) first = std::min(first, parameter(p).registration);
  return first;
}

int64_t Partition::largest_bucket() const {
  int64_t largest = 0;
  for (const dist::Bucket& bucket : layout_.buckets()) largest = std::max(largest, bucket.elements);
  return largest;
}

Tensor Partition::bucket_of(const Tensor& flat, int index) const {
  const dist::Bucket& b = bucket(index);
  return flat.flat(b.offset, b.offset + b.elements);
}

Tensor Partition::shard_of(const Tensor& shards, int index) const {
  const dist::Bucket& b = bucket(index);
  return shards.flat(b.shard_offset, b.shard_offset + b.shard_elements);
}

dist::Range Partition::held_range(int index) const {
  return sharded_ ? own_range(index) : whole_range(index);
}

Tensor Partition::held_values(int index) const {
  return sharded_ ? shard_of(values_, index) : bucket_of(values_, index);
}

void Partition::attach() const {
  // At stage 3 parameters have no memory until an operation reads them.
  for (int b = 0; b < buckets(); ++b) {
    const int64_t offset = bucket(b).offset * dtype_size(dtype_);
    attach_bucket(b, sharded_ ? nullptr : values_.storage(), sharded_ ? 0 : offset);
  }
  // Error messages take a parameter's name from its leaf.
  for (const auto& placed : parameters_) placed.named.parameter.leaf().name = placed.named.name;
}

void Partition::attach_bucket(int index, const std::shared_ptr<Storage>& values,
                              int64_t offset) const {
  for (const int p : bucket(index).parameters) {
    Tensor tensor = parameter(p).named.parameter.tensor();
    const int64_t at = layout_.slot(p).offset * dtype_size(dtype_);
    tensor.attach(values, values ? offset + at : 0);
  }
}

void Partition::fill(const Tensor& target, int index, const dist::Range& range,
                     const nn::ParameterSource& source) const {
  for (const Part& part : parts(index, range)) {
    const Tensor values = target.flat(part.offset, part.offset + part.end - part.begin);
    assign(values, [&](int64_t begin, std::span<float> out) {
      source(parameter(part.parameter).named, part.begin + begin, out);
    });
  }
}

std::vector<Partition::Part> Partition::parts(int index, const dist::Range& range) const {
  std::vector<Part> list;
  for (const int p : bucket(index).parameters) {
    const dist::ParameterSlot& slot = layout_.slot(p);
    const int64_t begin = std::max(range.begin, slot.offset);
    const int64_t end = std::min(range.end, slot.offset + slot.elements);
    if (begin >= end) continue;
    list.push_back({p, begin - slot.offset, end - slot.offset, begin - range.begin});
  }
  return list;
}

std::vector<UpdateSegment> Partition::segments(int index, const dist::Range& range,
                                               std::span<const int> hyper_of) const {
  std::vector<UpdateSegment> list;
  for (const int p : bucket(index).parameters) {
    const dist::ParameterSlot& slot = layout_.slot(p);
    // A segment includes the gap up to the end of the parameter's last block of 256 elements,
    // because the update works on whole blocks. Gradients, weights and state are zero in the gap,
    // and the update keeps them zero, except with an epsilon of 0: Adam and Adagrad then compute
    // 0 / 0 in the gap, which changes no parameter.
    const int64_t begin = std::max(range.begin, slot.offset);
    const int64_t whole = dist::blocks_of(slot.elements) * dist::block_elements;
    const int64_t end = std::min(range.end, slot.offset + whole);
    const int hyper = hyper_of[static_cast<size_t>(p)];
    if (begin >= end || hyper < 0) continue;
    // Adjacent segments with the same hyper-parameters become one.
    if (!list.empty() && list.back().group == hyper && list.back().end == begin - range.begin) {
      list.back().end = end - range.begin;
    } else {
      list.push_back({begin - range.begin, end - range.begin, hyper});
    }
  }
  return list;
}

void Partition::clear_views_of_gradients(int index) const {
  for (const int p : bucket(index).parameters) parameter(p).named.parameter.leaf().gradient = {};
}

void Partition::clear_gaps(const Tensor& gradient, int index) const {
  const auto clear = [&gradient](int64_t begin, int64_t end) {
    if (begin < end) {
      kernels::fill(current_context(gradient.device()), gradient.flat(begin, end), 0.0f);
    }
  };
  // The memory of a bucket was used before, for another bucket or for activations, so gaps may hold
  // any values. The gradient norm would include these values.
  int64_t covered = 0;
  for (const int p : bucket(index).parameters) {
    const dist::ParameterSlot& slot = layout_.slot(p);
    clear(covered, slot.offset);
    covered = slot.offset + slot.elements;
  }
  clear(covered, bucket(index).elements);
}

std::string Partition::owner_ranges(int index) const {
  constexpr int64_t most = 16;  // longer lists would make the trace large and unreadable
  std::string text;
  for (int64_t rank = 0; rank < std::min(layout_.ranks(), most); ++rank) {
    const dist::Range range = layout_.shard(index, rank);
    text += fmt::format("{}rank {} [{}, {})", rank == 0 ? "" : ", ", rank, range.begin, range.end);
  }
  return layout_.ranks() > most ? text + ", ..." : text;
}

}  // namespace tessera::optim
