#include "dist/shard_layout.h"

#include <algorithm>
#include <utility>

#include "core/error.h"

namespace tessera::dist {

namespace {

constexpr int64_t largest_sum = int64_t{1} << 62;

int64_t ceil_divide(int64_t a, int64_t b) { return a / b + (a % b != 0 ? 1 : 0); }

// Cannot overflow for elements <= largest_sum.
int64_t round_up_to_block(int64_t elements) {
  return blocks_of(elements) * block_elements;
}

void check_arguments(const std::vector<LayoutParameter>& parameters, int64_t ranks,
                     int64_t bucket_elements) {
  if (ranks < 1) fail_input("shard layout: {} ranks, expected at least 1", ranks);
  if (bucket_elements < 1) {
    fail_input("shard layout: buckets of {} elements, expected at least 1", bucket_elements);
  }
  for (const LayoutParameter& parameter : parameters) {
    if (parameter.elements < 0 || parameter.elements > largest_sum) {
      fail_input("shard layout: parameter {} has {} elements, expected 0 to 2^62", parameter.name,
                 parameter.elements);
    }
  }
}

// True if `parameter` goes into the open bucket `bucket`, of which `used` elements are taken.
bool fits(const Bucket& bucket, int64_t used, const LayoutParameter& parameter,
          int64_t bucket_elements) {
  if (bucket.parameters.empty()) return true;
  if (bucket.shared || parameter.shared || bucket.block != parameter.block) return false;
  if (used == 0) return true;
  const int64_t begin = round_up_to_block(used);
  return begin <= bucket_elements && parameter.elements <= bucket_elements - begin;
}

}  // namespace

ShardLayout::ShardLayout(std::vector<LayoutParameter> parameters, int64_t ranks,
                         int64_t bucket_elements)
    : ranks_(ranks), parameters_(std::move(parameters)), slots_(parameters_.size()) {
  check_arguments(parameters_, ranks, bucket_elements);

  Bucket open;
  int64_t used = 0;  // elements of `open` up to the end of its last parameter, at most 2^62

  const auto close = [&] {
    if (open.parameters.empty()) return;
    const int64_t blocks = ceil_divide(used, block_elements);
    const int64_t blocks_a_rank = ceil_divide(blocks, ranks);
    const int64_t room = (largest_sum - flat_elements_) / block_elements;
    if (blocks_a_rank > room / ranks) {
      fail_input("shard layout: the parameters, padded for {} ranks, exceed 2^62 elements", ranks);
    }
    open.offset = flat_elements_;
    open.shard_offset = flat_elements_ / ranks;
    open.shard_elements = blocks_a_rank * block_elements;
    open.elements = open.shard_elements * ranks;
    flat_elements_ += open.elements;
    buckets_.push_back(std::exchange(open, Bucket{}));
    used = 0;
  };

  for (int p = static_cast<int>(parameters_.size()) - 1; p >= 0; --p) {
    const LayoutParameter& parameter = parameters_[static_cast<size_t>(p)];
    if (!fits(open, used, parameter, bucket_elements)) close();
    const int64_t offset = round_up_to_block(used);
    if (parameter.elements > largest_sum - offset) {
      fail_input("shard layout: the parameters of one bucket exceed 2^62 elements");
    }
    slots_[static_cast<size_t>(p)] = {static_cast<int>(buckets_.size()), offset,
                                      parameter.elements};
    open.parameters.push_back(p);
    open.shared = parameter.shared;
    open.block = parameter.block;
    used = offset + parameter.elements;
    parameter_elements_ += parameter.elements;
  }
  close();
}

Range ShardLayout::shard(int bucket, int64_t rank) const {
  TESSERA_CHECK(rank >= 0 && rank < ranks_,
                "shard layout: rank {}, expected at least 0 and less than {}", rank, ranks_);
  const int64_t size = buckets_.at(static_cast<size_t>(bucket)).shard_elements;
  return {rank * size, (rank + 1) * size};
}

int64_t ShardLayout::owner(int bucket, int64_t offset) const {
  const Bucket& b = buckets_.at(static_cast<size_t>(bucket));
  TESSERA_CHECK(offset >= 0 && offset < b.elements,
                "shard layout: element {} is outside bucket {}, which has {} elements", offset,
                bucket, b.elements);
  return offset / b.shard_elements;
}

Range ShardLayout::owned(int parameter, int64_t rank) const {
  const ParameterSlot& slot = slots_.at(static_cast<size_t>(parameter));
  const Range own = shard(slot.bucket, rank);
  return {std::clamp(own.begin - slot.offset, int64_t{0}, slot.elements),
          std::clamp(own.end - slot.offset, int64_t{0}, slot.elements)};
}

}  // namespace tessera::dist
