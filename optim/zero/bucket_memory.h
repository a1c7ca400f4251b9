// Memory for the gradients of a partition's buckets, or for the gradient sums of a rank's shards of
// these buckets.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dist/communicator.h"

namespace tessera::optim {

/// On a GPU, the constructor allocates one buffer for all buckets, and free() keeps this buffer,
/// because CUDA graphs record addresses. On the CPU, each bucket has memory from the first take()
/// in a step to free() at the step's end. So gradients reuse memory of activations that backward
/// has freed (docs/memory.md).
class BucketMemory {
 public:
  /// Bucket b has elements[b] elements.
  BucketMemory(dist::Communicator& communicator, std::span<const int64_t> elements, DType dtype);

  DType dtype() const { return dtype_; }
  /// Returns a bucket's memory, [elements[bucket]]. If the bucket has none, allocates memory with
  /// arbitrary contents. Throws if there is not enough memory.
  Tensor take(int bucket);
  /// Returns the memory of a bucket. Throws if the bucket has no memory.
  const Tensor& of(int bucket) const;
  /// All buckets in order: on a GPU as one tensor, on the CPU as one tensor per bucket. Throws if a
  /// bucket has no memory.
  std::vector<Tensor> all() const;
  /// On the CPU, frees the memory of all buckets, each when the last view of it is gone.
  void free();

 private:
  dist::Communicator& communicator_;
  std::vector<int64_t> elements_;
  DType dtype_;
  Tensor flat_;                  // on a GPU: all buckets
  std::vector<Tensor> buckets_;  // one per bucket; undefined: the bucket has no memory (CPU only)
};

}  // namespace tessera::optim
