#include "optim/zero/bucket_memory.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "optim/zero/partition.h"

namespace tessera::optim {

BucketMemory::BucketMemory(dist::Communicator& communicator, std::span<const int64_t> elements,
                           DType dtype)
    : communicator_(communicator),
      elements_(elements.begin(), elements.end()),
      dtype_(dtype),
      buckets_(elements.size()) {
  if (communicator.device().is_cpu()) return;
  const int64_t total = std::accumulate(elements_.begin(), elements_.end(), int64_t{0});
  flat_ = flat_buffer(communicator, total, dtype, Category::gradients);
  int64_t begin = 0;
  for (size_t b = 0; b < elements_.size(); ++b) {
    buckets_[b] = flat_.flat(begin, begin + elements_[b]);
    begin += elements_[b];
  }
}

Tensor BucketMemory::take(int bucket) {
  const auto b = static_cast<size_t>(bucket);
  if (!buckets_[b].defined()) {
    // Zeroing all of the memory would cost time in every step. Zeros are not needed: code that
    // writes a bucket's gradients also zeroes the gaps between them (Partition::clear_gaps).
    buckets_[b] = uninitialised_buffer(communicator_, {elements_[b]}, dtype_, Category::gradients);
  }
  return buckets_[b];
}

const Tensor& BucketMemory::of(int bucket) const {
  const Tensor& memory = buckets_[static_cast<size_t>(bucket)];
  TESSERA_CHECK(memory.defined(), "optimizer: bucket {} has no gradient at this time", bucket);
  return memory;
}

std::vector<Tensor> BucketMemory::all() const {
  if (flat_.defined()) return {flat_};
  std::vector<Tensor> list;
  for (int b = 0; b < std::ssize(buckets_); ++b) list.push_back(of(b));
  return list;
}

void BucketMemory::free() {
  if (!flat_.defined()) std::ranges::fill(buckets_, Tensor());
}

}  // namespace tessera::optim
