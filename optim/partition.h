// Parameters that were laid out together: their flat memory, the own shard of their gradient sum,
// and which group each belongs to.
#pragma once

#include <string>
#include <vector>

#include "dist/communicator.h"
#include "dist/shard_layout.h"
#include "nn/module.h"
#include "optim/update_rule.h"

namespace tessera::optim {

/// A flat f32 buffer from the communicator, zeroed: gaps and padding stay zero from then on.
Tensor flat_buffer(dist::Communicator& communicator, int64_t elements, Category category);

class Partition {
 public:
  /// Gives every parameter its memory in the flat buffer; parameters that had values keep them, the
  /// others are initialised from `seed`. groups[i] is the group of parameters[i].
  Partition(std::vector<nn::NamedParameter> parameters, std::vector<int> groups,
            dist::Communicator& communicator, int64_t bucket_bytes, uint64_t seed);

  const dist::ShardLayout& layout() const { return layout_; }
  const std::vector<nn::NamedParameter>& parameters() const { return parameters_; }
  int buckets() const { return static_cast<int>(layout_.buckets().size()); }
  const dist::Bucket& bucket(int index) const {
    return layout_.buckets()[static_cast<size_t>(index)];
  }

  /// A bucket of a flat buffer that has the layout of the parameters.
  Tensor bucket_of(const Tensor& flat, int bucket) const;
  /// A bucket's part of a buffer that holds one rank's shards.
  Tensor shard_of(const Tensor& shards, int bucket) const;
  dist::Range own_range(int bucket) const { return layout_.shard(bucket, rank_); }

  const Tensor& values() const { return values_; }          // [flat_elements]
  const Tensor& accumulator() const { return accumulator_; }  // [shard_elements], f32

  /// Segments of `range` of a bucket for the update rules, relative to the range's begin.
  std::vector<UpdateSegment> segments(int bucket, const dist::Range& range) const;
  /// Zeroes what no parameter covers of a bucket's gradient.
  void clear_gaps(const Tensor& gradient, int bucket) const;
  /// "rank 0 [0, 512), rank 1 [512, 1024)", for the trace.
  std::string owner_ranges(int bucket) const;

  int64_t steps_taken = 0;

 private:
  void lay_out(uint64_t seed);

  std::vector<nn::NamedParameter> parameters_;
  std::vector<int> groups_;
  int rank_;
  dist::ShardLayout layout_;
  Tensor values_;
  Tensor accumulator_;
};

}  // namespace tessera::optim
