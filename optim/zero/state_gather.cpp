#include "optim/zero/state_gather.h"

#include <algorithm>

#include "core/ops/convert.h"

namespace tessera::optim {
namespace {

// Copies what `range` of a bucket holds of each of its parameters; `values` begins at range.begin.
void copy_out(const Partition& partition, int bucket, const dist::Range& range,
              std::span<const float> values, const std::string& state_name, StateByName& result) {
  // Parameters of which this rank has nothing are listed too.
  for (const int p : partition.bucket(bucket).parameters) {
    result[partition.parameter(p).named.name].values[state_name];
  }
  for (const Partition::Part& part : partition.parts(bucket, range)) {
    auto& shard = result[partition.parameter(part.parameter).named.name];
    shard.range = {part.begin, part.end};
    const float* first = values.data() + part.offset;
    shard.values[state_name].assign(first, first + (part.end - part.begin));
  }
}

}  // namespace

Tensor gather_bucket(const Partition& partition, int bucket, const Tensor& own,
                     const dist::Range& range, dist::Communicator& communicator) {
  const int64_t elements = partition.bucket(bucket).elements;
  const Tensor whole =
      flat_buffer(communicator, elements, DType::f32, Category::communication);
  const Tensor piece = whole.flat(range.begin, range.end);
  kernels::convert(current_context(whole.device()), piece, own);
  if (range.size() < elements) {
    communicator.all_gather(whole, {dist::Traffic::other, bucket}).wait();
  }
  return whole;
}

void own_state(const BucketFlow& flow, const std::vector<std::string>& names,
               StateByName& result) {
  for (int b = 0; b < flow.partition().buckets(); ++b) {
    const std::vector<Tensor> state = flow.updates().state(b);
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor own = state[i].to_host();
      copy_out(flow.partition(), b, flow.range(b), own.values<float>(), names[i], result);
    }
  }
}

void gather_state(const BucketFlow& flow, const std::vector<std::string>& names,
                  dist::Communicator& communicator, int root, StateByName& result) {
  const Partition& partition = flow.partition();
  for (int b = 0; b < partition.buckets(); ++b) {
    const std::vector<Tensor> state = flow.updates().state(b);
    for (size_t i = 0; i < names.size(); ++i) {
      const Tensor whole = gather_bucket(partition, b, state[i], flow.range(b), communicator);
      if (communicator.rank() == root) {
        const Tensor values = whole.to_host();
        copy_out(partition, b, partition.whole_range(b), values.values<float>(), names[i], result);
      }
    }
  }
}

}  // namespace tessera::optim
