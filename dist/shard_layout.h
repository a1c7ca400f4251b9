// Computes which rank owns which elements of the parameters. This is pure arithmetic, without
// devices or communication.
//
// Parameters are packed into buckets in reverse order of registration, because backward completes
// their gradients in this order. Each bucket is padded and cut into equal shards, one for each
// rank.
//
//   flat buffer   | bucket 0                          | bucket 1             | ...
//   bucket        | parameter | gap | parameter | padding |
//   shards        | rank 0 | rank 1 | ... | rank N-1 |
//
//  - Parameters start, and shards end, at multiples of 256 elements (a block). So sums that are
//    computed block by block have the same blocks for any number of ranks.
//  - A bucket closes at a parameter boundary. A parameter larger than a bucket gets its own bucket.
//  - A shared (tied) parameter gets a bucket of its own. Its gradient is complete only late in
//    backward. In a common bucket, the other gradients would have to wait for this gradient.
//  - A bucket closes where the next parameter is in another model block (LayoutParameter::block),
//    so that the parameters of one model block can be gathered without those of its neighbours. A
//    model block is a part of the model, such as a layer, and not a block of 256 elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::dist {

inline constexpr int64_t block_elements = 256;

/// elements / 256, rounded up; does not overflow for any number of elements.
constexpr int64_t blocks_of(int64_t elements) {
  return elements / block_elements + (elements % block_elements != 0 ? 1 : 0);
}

struct LayoutParameter {
  std::string name;
  int64_t elements = 0;
  bool shared = false;
  int64_t block = -1;  // index of the parameter's model block, e.g. its layer; -1: none
};

struct Range {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// The place of a parameter in its bucket.
struct ParameterSlot {
  int bucket = 0;
  int64_t offset = 0;  // first element in the bucket; a multiple of 256
  int64_t elements = 0;
};

struct Bucket {
  int64_t offset = 0;          // first element in the flat buffer
  int64_t elements = 0;        // padded: ranks * shard_elements
  int64_t shard_elements = 0;  // a multiple of 256
  int64_t shard_offset = 0;    // first element of the shard in each rank's flat shard buffer
  bool shared = false;         // holds one tied parameter
  int64_t block = -1;          // LayoutParameter::block of all its parameters
  std::vector<int> parameters;  // indices in ShardLayout::parameters(), by ascending offset
};

class ShardLayout {
 public:
  /// `parameters` are in order of registration. A parameter begins a new bucket if the open bucket
  /// would exceed `bucket_elements` with this parameter. Throws for ranks < 1, bucket_elements < 1,
  /// a negative size, or sizes whose padded sum exceeds 2^62.
  ShardLayout(std::vector<LayoutParameter> parameters, int64_t ranks, int64_t bucket_elements);

  int64_t ranks() const { return ranks_; }
  const std::vector<LayoutParameter>& parameters() const { return parameters_; }
  const std::vector<Bucket>& buckets() const { return buckets_; }
  const ParameterSlot& slot(int parameter) const { return slots_[static_cast<size_t>(parameter)]; }

  /// The range of a bucket that `rank` owns.
  Range shard(int bucket, int64_t rank) const;
  /// The rank that owns element `offset` of a bucket.
  int64_t owner(int bucket, int64_t offset) const;
  /// The range of a parameter's elements that `rank` owns; may be empty.
  Range owned(int parameter, int64_t rank) const;

  int64_t parameter_elements() const { return parameter_elements_; }  // without padding
  int64_t flat_elements() const { return flat_elements_; }            // with padding
  int64_t shard_elements() const { return flat_elements_ / ranks_; }  // of one rank
  int64_t padding_elements() const { return flat_elements_ - parameter_elements_; }

 private:
  int64_t ranks_;
  std::vector<LayoutParameter> parameters_;
  std::vector<Bucket> buckets_;
  std::vector<ParameterSlot> slots_;
  int64_t parameter_elements_ = 0;
  int64_t flat_elements_ = 0;
};

}  // namespace tessera::dist
