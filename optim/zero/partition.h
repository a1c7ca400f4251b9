// Parameters of one dtype that are laid out together: the place of each one, the memory of their
// values, and the own shard of their gradient sum.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/shard_layout.h"
#include "nn/parameter_source.h"
#include "optim/kernels/update.h"
#include "optim/rules/update_rule.h"

namespace tessera::optim {

/// A zeroed flat buffer from the communicator: gaps and padding stay zero from then on.
Tensor flat_buffer(dist::Communicator& communicator, int64_t elements, DType dtype,
                   Category category);

/// A parameter as the optimizer knows it.
struct PlacedParameter {
  nn::NamedParameter named;
  int group = 0;
  int64_t registration = 0;  // its index among all parameters of the optimizer
};

struct PartitionOptions {
  int64_t bucket_bytes = 0;
  bool sharded = false;  // stage 3: a rank holds only the values that it owns
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
  /// The description of a collective on a bucket. Each partition numbers its buckets from 0; the
  /// group, the registration index of its first parameter, tells partitions apart.
  dist::Call call(dist::Traffic purpose, int bucket) const {
    return {purpose, bucket, parameters_.front().registration};
  }
  /// The lowest registration index in a bucket; backward reaches that parameter last.
  int64_t first_registration(int bucket) const;
  int64_t largest_bucket() const;  // elements

  /// A bucket of a flat buffer that has the layout of the parameters.
  Tensor bucket_of(const Tensor& flat, int bucket) const;
  /// A bucket's part of a buffer that holds one rank's shards.
  Tensor shard_of(const Tensor& shards, int bucket) const;
  dist::Range own_range(int bucket) const { return layout_.shard(bucket, rank_); }
  dist::Range whole_range(int bucket) const { return {0, this->bucket(bucket).elements}; }

  /// The range of a bucket's values that this rank always holds, and the values.
  dist::Range held_range(int bucket) const;
  Tensor held_values(int bucket) const;
  /// The gradient sum of the own shards, [shard_elements]; frozen parameters have none.
  const Tensor& accumulator() const { return accumulator_; }

  /// Makes the parameters views of the flat buffer. If values are sharded, takes their memory away.
  void attach() const;
  /// Makes a bucket's parameters views of `values` from byte `offset` on; null: without memory.
  void attach_bucket(int bucket, const std::shared_ptr<Storage>& values, int64_t offset) const;
  /// Writes `range` of a bucket from `source` to `target`, of any float dtype.
  void fill(const Tensor& target, int bucket, const dist::Range& range,
            const nn::ParameterSource& source) const;

  /// A part of a parameter, at `offset` of a range of its bucket.
  struct Part {
    int parameter = 0;
    int64_t begin = 0;  // of the parameter's elements
    int64_t end = 0;
    int64_t offset = 0;
  };
  /// The non-empty parts of parameters in a range of a bucket.
  std::vector<Part> parts(int bucket, const dist::Range& range) const;

  /// Segments of `range` of a bucket for the update rules, relative to the range's begin.
  /// hyper_of[parameter] is an index of hyper-parameters, or -1 for no update.
  std::vector<UpdateSegment> segments(int bucket, const dist::Range& range,
                                      std::span<const int> hyper_of) const;
  /// Zeroes the elements of a bucket's gradient that belong to no parameter.
  void clear_gaps(const Tensor& gradient, int bucket) const;
  /// "rank 0 [0, 512), rank 1 [512, 1024)", for the trace.
  std::string owner_ranges(int bucket) const;

 private:
  std::vector<PlacedParameter> parameters_;
  DType dtype_;
  bool trainable_;
  bool sharded_;
  int rank_;
  dist::ShardLayout layout_;
  Tensor values_;  // flat, or the own shards
  Tensor accumulator_;
};

}  // namespace tessera::optim
