// Parameters of one dtype that are laid out together in flat buffers: the place of each parameter,
// the memory of the values, and this rank's shard of the gradient sum.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/trace.h"
#include "dist/communicator.h"
#include "dist/shard_layout.h"
#include "nn/parameter_source.h"
#include "optim/kernels/update.h"
#include "optim/rules/update_rule.h"
#include "optim/zero/bucket_memory.h"

namespace tessera::optim {

/// Allocates a zeroed flat buffer from the communicator. Padding and the gaps between parameters
/// must stay zero, because norms and updates read whole blocks of 256 elements.
Tensor flat_buffer(dist::Communicator& communicator, int64_t elements, DType dtype,
                   Category category);
/// Allocates a buffer with arbitrary contents from the communicator.
Tensor uninitialised_buffer(dist::Communicator& communicator, const Shape& shape, DType dtype,
                            Category category);

/// A parameter, its group of hyper-parameters (ZeroOptions::groups), and its index in the
/// optimizer.
struct PlacedParameter {
  nn::NamedParameter named;
  int group = 0;
  int64_t registration = 0;  // index among all parameters of the optimizer
};

struct PartitionOptions {
  int64_t bucket_bytes = 0;
  bool sharded = false;  // true at stage 3: a rank holds only its shard of the values
  DType sum_dtype = DType::f32;
};

class Partition {
 public:
  /// The parameters must have one dtype, and be all trainable or all frozen. Allocates memory;
  /// attach() and fill() then give the parameters their values.
  Partition(std::vector<PlacedParameter> parameters, dist::Communicator& communicator,
            const PartitionOptions& options);

  const dist::ShardLayout& layout() const { return layout_; }
  const std::vector<PlacedParameter>& parameters() const { return parameters_; }
  const PlacedParameter& parameter(int index) const {
    return parameters_[static_cast<size_t>(index)];
  }
  DType dtype() const { return dtype_; }
  bool trainable() const { return trainable_; }
  int buckets() const { return static_cast<int>(layout_.buckets().size()); }
  const dist::Bucket& bucket(int index) const {
    return layout_.buckets()[static_cast<size_t>(index)];
  }
  /// Describes a collective on a bucket. Each partition numbers its buckets from 0. The
  /// registration index of the partition's first parameter tells partitions apart.
  dist::Call call(dist::Traffic purpose, int bucket) const {
    return {purpose, bucket, parameters_.front().registration};
  }
  /// Identifies a bucket and an event of its gradient (trace::Station) in records of the trace.
  trace::BucketPlace place(int bucket, trace::Station station) const {
    return call(dist::Traffic::gradients, bucket).place(station);
  }
  /// The lowest registration index in a bucket. Backward is expected to reach that parameter last.
  int64_t first_registration(int bucket) const;
  int64_t largest_bucket() const;  // elements

  /// A bucket's part of a buffer that holds all parameters in the order of the layout.
  Tensor bucket_of(const Tensor& flat, int bucket) const;
  /// A bucket's part of a buffer that holds one rank's shards.
  Tensor shard_of(const Tensor& shards, int bucket) const;
  dist::Range own_range(int bucket) const { return layout_.shard(bucket, rank_); }
  dist::Range whole_range(int bucket) const { return {0, this->bucket(bucket).elements}; }

  /// The range of a bucket whose values this rank always holds: this rank's shard at stage 3, the
  /// whole bucket at other stages.
  dist::Range held_range(int bucket) const;
  /// The values of held_range(bucket).
  Tensor held_values(int bucket) const;
  /// The step's gradient sum of this rank's shard of each bucket. Not for frozen parameters.
  BucketMemory& sums() const { return *sums_; }

  /// Makes the parameters views of the flat buffer. If values are sharded, leaves the parameters
  /// without memory instead.
  void attach() const;
  /// Makes a bucket's parameters views of `values` from byte `offset` on. If `values` is null,
  /// leaves the parameters without memory.
  void attach_bucket(int bucket, const std::shared_ptr<Storage>& values, int64_t offset) const;
  /// Writes `range` of a bucket from `source` to `target`, which may have any float dtype.
  void fill(const Tensor& target, int bucket, const dist::Range& range,
            const nn::ParameterSource& source) const;

  /// Elements [begin, end) of a parameter. Element `begin` is element `offset` of the range that
  /// parts() was given.
  struct Part {
    int parameter = 0;
    int64_t begin = 0;
    int64_t end = 0;
    int64_t offset = 0;
  };
  /// The non-empty parts of parameters in a range of a bucket.
  std::vector<Part> parts(int bucket, const dist::Range& range) const;

  /// Returns the segments of a bucket's `range` that an update rule must update. Segments are
  /// relative to range.begin. hyper_of has an element for each parameter of this partition: the
  /// UpdateSegment::group of its segments, or -1 for no update.
  std::vector<UpdateSegment> segments(int bucket, const dist::Range& range,
                                      std::span<const int> hyper_of) const;
  /// Resets Leaf::gradient of a bucket's parameters to an undefined Tensor.
  void clear_views_of_gradients(int bucket) const;
  /// Zeroes the elements of a bucket's gradient that belong to no parameter.
  void clear_gaps(const Tensor& gradient, int bucket) const;
  /// Describes a bucket's shards for the trace, at most 16: "rank 0 [0, 512), rank 1 [512, 1024)".
  std::string owner_ranges(int bucket) const;

 private:
  std::vector<PlacedParameter> parameters_;
  DType dtype_;
  bool trainable_;
  bool sharded_;
  int rank_;
  dist::ShardLayout layout_;
  Tensor values_;  // all parameters, or if sharded_ this rank's shards
  std::unique_ptr<BucketMemory> sums_;  // null for frozen parameters
};

}  // namespace tessera::optim
