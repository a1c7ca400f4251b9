#include "optim/state_gather.h"

#include <algorithm>

#include "core/kernels.h"

namespace tessera::optim {
namespace {

// Copies what `range` of a bucket holds of each of its parameters; `values` begins at range.begin.
void copy_out(const Partition& partition, int bucket, const dist::Range& range,
              std::span<const float> values, const std::string& state_name, StateByName& result) {
  for (const int parameter : partition.bucket(bucket).parameters) {
    const dist::ParameterSlot& slot = partition.layout().slot(parameter);
    const int64_t begin = std::max(range.begin, slot.offset);
    const int64_t end = std::min(range.end, slot.offset + slot.elements);
    auto& shard = result[partition.parameters()[static_cast<size_t>(parameter)].name];
    std::vector<float>& copy = shard.values[state_name];
    if (begin >= end) continue;
    shard.range = {begin - slot.offset, end - slot.offset};
    const float* first = values.data() + (begin - range.begin);
    copy.assign(first, first + (end - begin));
  }
}

}  // namespace

void own_state(const Partition& partition, const UpdatePolicy& updates,
               const std::vector<std::string>& names, StateByName& result) {
  for (int b = 0; b < partition.buckets(); ++b) {
    const std::vector<Tensor> state = updates.bucket_state(b);
    for (size_t i = 0; i < names.size(); ++i) {
      copy_out(partition, b, updates.state_range(b), state[i].values<float>(), names[i], result);
    }
  }
}

void gather_state(const Partition& partition, const UpdatePolicy& updates,
                  const std::vector<std::string>& names, dist::Communicator& communicator, int root,
                  StateByName& result) {
  for (int b = 0; b < partition.buckets(); ++b) {
    const std::vector<Tensor> state = updates.bucket_state(b);
    const dist::Range own = updates.state_range(b);
    const int64_t elements = partition.bucket(b).elements;
    for (size_t i = 0; i < names.size(); ++i) {
      Tensor whole = state[i];
      if (own.size() < elements) {
        whole = flat_buffer(communicator, elements, Category::communication);
        kernels::copy(current_context(whole.device()), whole.flat(own.begin, own.end), state[i]);
        communicator.all_gather(whole, {dist::Traffic::other, b}).wait();
      }
      if (communicator.rank() == root) {
        copy_out(partition, b, {0, elements}, whole.values<float>(), names[i], result);
      }
    }
  }
}

}  // namespace tessera::optim
