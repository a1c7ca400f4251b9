#include "dist/shard_layout.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <random>

#include "core/error.h"
#include "tests/support/catch.h"

using tessera::Error;
using tessera::dist::block_elements;
using tessera::dist::Bucket;
using tessera::dist::LayoutParameter;
using tessera::dist::ParameterSlot;
using tessera::dist::Range;
using tessera::dist::ShardLayout;

namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

std::vector<LayoutParameter> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<LayoutParameter> parameters;
  for (const int64_t size : sizes) {
    parameters.push_back({fmt::format("p{}", parameters.size()), size, false});
  }
  return parameters;
}

void check_buckets(const ShardLayout& layout) {
  int64_t offset = 0;
  int64_t shard_offset = 0;
  for (const Bucket& bucket : layout.buckets()) {
    REQUIRE(bucket.offset == offset);
    REQUIRE(bucket.shard_offset == shard_offset);
    REQUIRE(bucket.shard_elements % block_elements == 0);
    REQUIRE(bucket.elements == bucket.shard_elements * layout.ranks());
    REQUIRE(!bucket.parameters.empty());
    REQUIRE((!bucket.shared || bucket.parameters.size() == 1));
    offset += bucket.elements;
    shard_offset += bucket.shard_elements;
    // The padding is less than one block a rank: no smaller shard would do.
    const ParameterSlot& last = layout.slot(bucket.parameters.back());
    const int64_t used = round_up(last.offset + last.elements, block_elements);
    REQUIRE(used <= bucket.elements);
    REQUIRE(bucket.elements - used < block_elements * layout.ranks());
  }
  REQUIRE(layout.flat_elements() == offset);
  REQUIRE(layout.shard_elements() == shard_offset);
  REQUIRE(layout.padding_elements() == offset - layout.parameter_elements());
}

void check_slots(const ShardLayout& layout) {
  int expected = static_cast<int>(layout.parameters().size()) - 1;
  int64_t sum = 0;
  for (size_t b = 0; b < layout.buckets().size(); ++b) {
    int64_t end = 0;
    for (const int p : layout.buckets()[b].parameters) {
      REQUIRE(p == expected--);  // reverse order of registration, over the buckets too
      const ParameterSlot& slot = layout.slot(p);
      const LayoutParameter& parameter = layout.parameters()[static_cast<size_t>(p)];
      REQUIRE(slot.bucket == static_cast<int>(b));
      REQUIRE(slot.elements == parameter.elements);
      REQUIRE(slot.offset % block_elements == 0);
      REQUIRE(slot.offset == round_up(end, block_elements));
      REQUIRE(layout.buckets()[b].shared == parameter.shared);
      end = slot.offset + slot.elements;
      sum += slot.elements;
    }
  }
  REQUIRE(expected == -1);
  REQUIRE(layout.parameter_elements() == sum);
}

// Where a bucket closed, it had to: nothing is shared, and the next parameter would exceed it.
void check_closing(const ShardLayout& layout, int64_t bucket_elements) {
  const auto& buckets = layout.buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const ParameterSlot& last = layout.slot(buckets[b].parameters.back());
    const int64_t end = last.offset + last.elements;
    const ParameterSlot& first = layout.slot(buckets[b].parameters.front());
    if (end > bucket_elements) REQUIRE(first.offset + first.elements <= end);
    int with_elements = 0;
    for (const int p : buckets[b].parameters) with_elements += layout.slot(p).elements > 0;
    if (with_elements > 1) REQUIRE(end <= bucket_elements);
    if (b + 1 == buckets.size() || buckets[b].shared || buckets[b + 1].shared) continue;
    const ParameterSlot& next = layout.slot(buckets[b + 1].parameters.front());
    REQUIRE(round_up(end, block_elements) + next.elements > bucket_elements);
  }
}

// Only the ranks around a parameter's ends matter when there are a million.
std::vector<int64_t> interesting_ranks(const ShardLayout& layout, int parameter) {
  std::vector<int64_t> ranks;
  const auto add = [&](int64_t rank) {
    if (rank >= 0 && rank < layout.ranks()) ranks.push_back(rank);
  };
  if (layout.ranks() <= 64) {
    for (int64_t r = 0; r < layout.ranks(); ++r) add(r);
    return ranks;
  }
  const ParameterSlot& slot = layout.slot(parameter);
  for (int64_t near : {int64_t{0}, layout.ranks() - 1}) add(near);
  if (slot.elements > 0) {
    const int64_t first = layout.owner(slot.bucket, slot.offset);
    const int64_t last = layout.owner(slot.bucket, slot.offset + slot.elements - 1);
    for (int64_t d = -2; d <= 2; ++d) {
      add(first + d);
      add(last + d);
      add((first + last) / 2 + d);
    }
  }
  std::ranges::sort(ranks);
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  return ranks;
}

void check_owners(const ShardLayout& layout) {
  for (int p = 0; p < static_cast<int>(layout.parameters().size()); ++p) {
    const ParameterSlot& slot = layout.slot(p);
    REQUIRE(layout.owned(p, 0).begin == 0);
    REQUIRE(layout.owned(p, layout.ranks() - 1).end == slot.elements);
    for (const int64_t rank : interesting_ranks(layout, p)) {
      const Range owned = layout.owned(p, rank);
      REQUIRE(owned.begin <= owned.end);
      // Neighbours meet, so over all ranks the ranges tile the parameter.
      if (rank > 0) REQUIRE(layout.owned(p, rank - 1).end == owned.begin);
      if (owned.size() == 0) continue;
      const Range shard = layout.shard(slot.bucket, rank);
      REQUIRE(slot.offset + owned.begin >= shard.begin);
      REQUIRE(slot.offset + owned.end <= shard.end);
      REQUIRE(layout.owner(slot.bucket, slot.offset + owned.begin) == rank);
      REQUIRE(layout.owner(slot.bucket, slot.offset + owned.end - 1) == rank);
    }
  }
}

void check_all(const ShardLayout& layout, int64_t bucket_elements) {
  check_buckets(layout);
  check_slots(layout);
  check_closing(layout, bucket_elements);
  check_owners(layout);
}

}  // namespace

// Parameters a = 300, b = 100, c = 600 elements, registered in this order; 2 ranks; buckets of
// 1024.
//   c starts at 0 and ends at 600; b starts on the next block, 768, and ends at 868; a would start
//   at 1024 and end at 1324 > 1024: the bucket closes.
//   bucket 0: blocks 0-255 256-511 512-767 768-1023 = 4 blocks, 2 a rank: shards of 512.
//   bucket 1: a, 300 elements = 2 blocks, 1 a rank: shards of 256.
//   Flat: 1024 + 512 = 1536; 536 of them padding. b (768..867 of bucket 0) is rank 1's; of c
//   rank 0 has 0..511, rank 1 512..599; of a rank 0 has 0..255, rank 1 256..299.
TEST_CASE("two buckets on two ranks, derived by hand") {
  const ShardLayout layout(parameters_of({300, 100, 600}), 2, 1024);
  REQUIRE(layout.buckets().size() == 2);
  const Bucket& first = layout.buckets()[0];
  CHECK(first.parameters == std::vector<int>{2, 1});
  CHECK((first.offset == 0 && first.elements == 1024));
  CHECK((first.shard_elements == 512 && first.shard_offset == 0));
  const Bucket& second = layout.buckets()[1];
  CHECK(second.parameters == std::vector<int>{0});
  CHECK((second.offset == 1024 && second.elements == 512));
  CHECK((second.shard_elements == 256 && second.shard_offset == 512));
  CHECK((layout.slot(2).bucket == 0 && layout.slot(2).offset == 0));
  CHECK((layout.slot(1).bucket == 0 && layout.slot(1).offset == 768));
  CHECK((layout.slot(0).bucket == 1 && layout.slot(0).offset == 0));
  CHECK(layout.parameter_elements() == 1000);
  CHECK(layout.flat_elements() == 1536);
  CHECK(layout.shard_elements() == 768);
  CHECK(layout.padding_elements() == 536);
  CHECK(layout.largest_unshared_bucket() == 1024);
  CHECK(layout.owned(1, 0) == Range{0, 0});
  CHECK(layout.owned(1, 1) == Range{0, 100});
  CHECK(layout.owned(2, 0) == Range{0, 512});
  CHECK(layout.owned(2, 1) == Range{512, 600});
  CHECK(layout.owned(0, 0) == Range{0, 256});
  CHECK(layout.owned(0, 1) == Range{256, 300});
}

// A tied embedding of 1000 elements registered first, then 10 and 2000; 3 ranks; buckets of 2560.
//   2000 at 0..1999; 10 at 2048..2057; the embedding is tied: its own bucket.
//   bucket 0: 2058 elements = 9 blocks (8.04), 3 a rank: shards of 768, 2304 in all.
//   bucket 1: 1000 = 4 blocks, 2 a rank: shards of 512, 1536 in all; rank 2 owns nothing of it.
//   Flat 3840, of which 3010 are parameters.
TEST_CASE("a tied parameter on three ranks, derived by hand") {
  const ShardLayout layout({{"wte", 1000, true}, {"bias", 10, false}, {"weight", 2000, false}}, 3,
                           2560);
  REQUIRE(layout.buckets().size() == 2);
  CHECK(layout.buckets()[0].parameters == std::vector<int>{2, 1});
  CHECK(layout.buckets()[0].elements == 2304);
  CHECK_FALSE(layout.buckets()[0].shared);
  CHECK(layout.buckets()[1].parameters == std::vector<int>{0});
  CHECK(layout.buckets()[1].elements == 1536);
  CHECK(layout.buckets()[1].shared);
  CHECK(layout.slot(1).offset == 2048);
  CHECK(layout.flat_elements() == 3840);
  CHECK(layout.padding_elements() == 830);
  CHECK(layout.shard_elements() == 1280);
  CHECK(layout.largest_unshared_bucket() == 2304);
  CHECK(layout.owned(0, 0) == Range{0, 512});
  CHECK(layout.owned(0, 1) == Range{512, 1000});
  CHECK(layout.owned(0, 2) == Range{1000, 1000});
  CHECK(layout.owned(1, 2) == Range{0, 10});
  CHECK(layout.owner(0, 2057) == 2);
}

// One element on four ranks: one block a rank, so 1024 elements, of which rank 0 owns the one.
TEST_CASE("one element on four ranks, derived by hand") {
  const ShardLayout layout(parameters_of({1}), 4, 1);
  REQUIRE(layout.buckets().size() == 1);
  CHECK(layout.flat_elements() == 1024);
  CHECK(layout.shard_elements() == 256);
  CHECK(layout.padding_elements() == 1023);
  CHECK(layout.owned(0, 0) == Range{0, 1});
  for (int64_t rank = 1; rank < 4; ++rank) CHECK(layout.owned(0, rank) == Range{1, 1});
}

TEST_CASE("layouts of nothing") {
  const ShardLayout none({}, 3, 100);
  CHECK(none.buckets().empty());
  CHECK(none.flat_elements() == 0);
  CHECK(none.shard_elements() == 0);
  CHECK(none.largest_unshared_bucket() == 0);

  const ShardLayout empty(parameters_of({0, 0}), 3, 100);
  REQUIRE(empty.buckets().size() == 1);
  CHECK(empty.flat_elements() == 0);
  CHECK(empty.owned(0, 2) == Range{0, 0});
  check_all(empty, 100);
}

TEST_CASE("a bucket closes with the parameter that would exceed it, not before") {
  // 256 + 256 = 512 fits exactly; with buckets of 511 elements it does not.
  CHECK(ShardLayout(parameters_of({256, 256}), 1, 512).buckets().size() == 1);
  CHECK(ShardLayout(parameters_of({256, 256}), 1, 511).buckets().size() == 2);
  // The gap up to a block counts: 1 + 256 elements end at 512.
  CHECK(ShardLayout(parameters_of({256, 1}), 1, 511).buckets().size() == 2);
  CHECK(ShardLayout(parameters_of({256, 1}), 1, 512).buckets().size() == 1);
  // A parameter larger than a bucket is alone, whatever comes before and after.
  const ShardLayout large(parameters_of({10, 5000, 10}), 2, 1000);
  REQUIRE(large.buckets().size() == 3);
  CHECK(large.buckets()[1].parameters == std::vector<int>{1});
}

TEST_CASE("properties of layouts over random parameters and ranks") {
  std::mt19937_64 random(7);
  const auto below = [&](int64_t bound) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(bound));
  };
  const std::vector<int64_t> rank_counts{1,  2,  3,    4,    5,       7,        8,
                                         13, 64, 1000, 4099, 999'983, 1'000'000};
  for (int round = 0; round < 400; ++round) {
    std::vector<LayoutParameter> parameters;
    const int64_t count = below(40);
    for (int64_t p = 0; p < count; ++p) {
      constexpr int64_t bounds[] = {2, 300, 5000, 3'000'000};
      const int64_t size = below(bounds[below(4)]);
      const int64_t aligned = below(4) == 0 ? round_up(size, block_elements) : size;
      parameters.push_back({"p", aligned, below(10) == 0});
    }
    constexpr int64_t bucket_sizes[] = {1, 255, 256, 4096, 1'000'000, int64_t{1} << 40};
    const int64_t bucket_elements = bucket_sizes[below(6)];
    const int64_t ranks = rank_counts[static_cast<size_t>(below(13))];
    INFO("round " << round << ", ranks " << ranks << ", buckets of " << bucket_elements);
    check_all(ShardLayout(parameters, ranks, bucket_elements), bucket_elements);
  }
}

TEST_CASE("every element of a small layout has exactly one owner") {
  for (int64_t ranks : {1, 2, 3, 5, 11}) {
    const ShardLayout layout(parameters_of({1, 700, 0, 256, 3000}), ranks, 1024);
    for (int p = 0; p < 5; ++p) {
      for (int64_t element = 0; element < layout.slot(p).elements; ++element) {
        int64_t owners = 0;
        for (int64_t rank = 0; rank < ranks; ++rank) {
          const Range owned = layout.owned(p, rank);
          owners += owned.begin <= element && element < owned.end;
        }
        REQUIRE(owners == 1);
      }
    }
  }
}

TEST_CASE("whoever sums by blocks has the same blocks for any number of ranks") {
  const std::vector<LayoutParameter> parameters = parameters_of({1000, 4000, 77, 5000});
  for (int64_t ranks : {1, 2, 3, 7}) {
    const ShardLayout layout(parameters, ranks, 4096);
    const ShardLayout one(parameters, 1, 4096);
    for (int p = 0; p < 4; ++p) {
      REQUIRE(layout.slot(p).bucket == one.slot(p).bucket);
      REQUIRE(layout.slot(p).offset == one.slot(p).offset);
      for (int64_t rank = 0; rank < ranks; ++rank) {
        const Range owned = layout.owned(p, rank);
        REQUIRE((owned.begin % block_elements == 0 || owned.begin == parameters[p].elements));
      }
    }
  }
}

TEST_CASE("bad arguments and sums beyond 2^62 are refused") {
  constexpr int64_t huge = int64_t{1} << 62;
  CHECK_THROWS_AS(ShardLayout(parameters_of({1}), 0, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({1}), -1, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({1}), 1, 0), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({-1}), 1, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge + 1}), 1, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({std::numeric_limits<int64_t>::max()}), 3, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge, 1}), 1, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge, 1}), 1, huge), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge / 2, huge / 2, 1}), 1, 1), Error);
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge}), 3, 1), Error);  // padding takes it beyond
  CHECK_THROWS_AS(ShardLayout(parameters_of({1}), huge / 256 + 1, 1), Error);
  CHECK_NOTHROW(ShardLayout(parameters_of({1}), huge / 256, 1));
  CHECK(ShardLayout(parameters_of({huge}), 1, 1).flat_elements() == huge);
  CHECK(ShardLayout(parameters_of({huge / 2, huge / 2}), 4, 1).flat_elements() == huge);
}

TEST_CASE("indices out of range are refused") {
  const ShardLayout layout(parameters_of({1000}), 2, 1024);
  CHECK_THROWS_AS(layout.shard(0, 2), Error);
  CHECK_THROWS_AS(layout.shard(0, -1), Error);
  CHECK_THROWS_AS(layout.owner(0, 1024), Error);
  CHECK_THROWS_AS(layout.owner(0, -1), Error);
  CHECK_THROWS(layout.shard(1, 0));
  CHECK_THROWS(layout.owned(1, 0));
}

TEST_CASE("a layout's cost does not depend on the number of ranks") {
  const std::vector<LayoutParameter> parameters = parameters_of(std::vector<int64_t>(2000, 12345));
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 20; ++i) {
    const ShardLayout layout(parameters, 1'000'000'000, 1 << 20);
    REQUIRE(layout.owned(7, 0).begin == 0);
  }
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(2));
}
