#include "dist/shard_layout.h"

#include <chrono>
#include <limits>

#include "core/error.h"
#include "tests/support/catch.h"

using tessera::Error;
using tessera::dist::block_elements;
using tessera::dist::Bucket;
using tessera::dist::LayoutParameter;
using tessera::dist::Range;
using tessera::dist::ShardLayout;

namespace {

std::vector<LayoutParameter> parameters_of(const std::vector<int64_t>& sizes) {
  std::vector<LayoutParameter> parameters;
  for (const int64_t size : sizes) {
    parameters.push_back({fmt::format("p{}", parameters.size()), size, false});
  }
  return parameters;
}

}  // namespace

// Parameters a = 300, b = 100, c = 600 elements, registered in this order and laid out in reverse
// order; 2 ranks; buckets of 1024.
//   c starts at 0 and ends at 600. b starts on the next block, 768, and ends at 868. a would start
//   at 1024 and end at 1324 > 1024, so the bucket closes.
//   bucket 0: blocks 0-255 256-511 512-767 768-1023 = 4 blocks, 2 a rank: shards of 512.
//   bucket 1: a, 300 elements = 2 blocks, 1 a rank: shards of 256.
//   Together 1024 + 512 = 1536 elements, 536 of them padding.
//   Rank 0 owns c 0..511 and a 0..255. Rank 1 owns c 512..599, b 0..99 and a 256..299.
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
  CHECK(layout.owned(1, 0) == Range{0, 0});
  CHECK(layout.owned(1, 1) == Range{0, 100});
  CHECK(layout.owned(2, 0) == Range{0, 512});
  CHECK(layout.owned(2, 1) == Range{512, 600});
  CHECK(layout.owned(0, 0) == Range{0, 256});
  CHECK(layout.owned(0, 1) == Range{256, 300});
}

// A tied embedding of 1000 elements, a bias of 10 and a weight of 2000, registered in this order;
// 3 ranks; buckets of 2560.
//   The weight lies at 0..1999, the bias at 2048..2057. The tied embedding has a bucket of its own.
//   bucket 0: 2058 elements = 9 blocks (8.04), 3 a rank: shards of 768, 2304 in all.
//   bucket 1: 1000 = 4 blocks, 2 a rank: shards of 512, 1536 in all. Rank 2 has only padding.
//   Together 3840 elements, 3010 of them parameters.
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
  CHECK(layout.owned(0, 0) == Range{0, 512});
  CHECK(layout.owned(0, 1) == Range{512, 1000});
  CHECK(layout.owned(0, 2) == Range{1000, 1000});
  CHECK(layout.owned(1, 2) == Range{0, 10});
  CHECK(layout.owner(0, 2057) == 2);
}

// One element on four ranks: one block a rank, so 1024 elements. Rank 0 owns the parameter.
TEST_CASE("one element on four ranks, derived by hand") {
  const ShardLayout layout(parameters_of({1}), 4, 1);
  REQUIRE(layout.buckets().size() == 1);
  CHECK(layout.flat_elements() == 1024);
  CHECK(layout.shard_elements() == 256);
  CHECK(layout.padding_elements() == 1023);
  CHECK(layout.owned(0, 0) == Range{0, 1});
  for (int64_t rank = 1; rank < 4; ++rank) CHECK(layout.owned(0, rank) == Range{1, 1});
}

// An embedding of 500 in block 0 of the model, a weight of 300 and a bias of 100 in block 1 of the
// model; 2 ranks. All would fit into one bucket, but a bucket has parameters of only one block of
// the model. Below, blocks have 256 elements.
//   bucket 0: the bias at 0..99, the weight at 256..555: 3 blocks, 2 a rank: 1024 elements.
//   bucket 1: the embedding: 2 blocks, 1 a rank: 512 elements.
TEST_CASE("two blocks on two ranks, derived by hand") {
  const ShardLayout layout({{"wte", 500, false, 0}, {"weight", 300, false, 1},
                            {"bias", 100, false, 1}}, 2, 1'000'000);
  REQUIRE(layout.buckets().size() == 2);
  CHECK(layout.buckets()[0].parameters == std::vector<int>{2, 1});
  CHECK((layout.buckets()[0].elements == 1024 && layout.buckets()[0].block == 1));
  CHECK(layout.buckets()[1].parameters == std::vector<int>{0});
  CHECK((layout.buckets()[1].elements == 512 && layout.buckets()[1].block == 0));
  CHECK(layout.slot(1).offset == 256);
  CHECK(layout.flat_elements() == 1536);
  CHECK(layout.padding_elements() == 636);
}

TEST_CASE("layouts without parameters, and of empty parameters") {
  const ShardLayout none({}, 3, 100);
  CHECK(none.buckets().empty());
  CHECK(none.flat_elements() == 0);
  CHECK(none.shard_elements() == 0);

  const ShardLayout empty(parameters_of({0, 0}), 3, 100);
  REQUIRE(empty.buckets().size() == 1);
  CHECK(empty.flat_elements() == 0);
  CHECK(empty.owned(0, 2) == Range{0, 0});
}

TEST_CASE("a bucket closes with the parameter that would exceed it, not before") {
  // 256 + 256 = 512 fits exactly; with buckets of 511 elements it does not.
  CHECK(ShardLayout(parameters_of({256, 256}), 1, 512).buckets().size() == 1);
  CHECK(ShardLayout(parameters_of({256, 256}), 1, 511).buckets().size() == 2);
  // Gaps between parameters count, too. A bucket begins with the last parameter: 1 element and a
  // gap of 255, then 256 elements.
  CHECK(ShardLayout(parameters_of({256, 1}), 1, 511).buckets().size() == 2);
  CHECK(ShardLayout(parameters_of({256, 1}), 1, 512).buckets().size() == 1);
  // A parameter larger than a bucket shares its bucket with no other parameter that has elements.
  const ShardLayout large(parameters_of({10, 5000, 10}), 2, 1000);
  REQUIRE(large.buckets().size() == 3);
  CHECK(large.buckets()[1].parameters == std::vector<int>{1});
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

TEST_CASE("kernel blocks are the same for any number of ranks") {
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
  CHECK_THROWS_AS(ShardLayout(parameters_of({huge}), 3, 1), Error);  // too large with padding
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
