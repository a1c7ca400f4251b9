// Checks properties that every layout has, over random parameters, model blocks, ranks and bucket
// sizes. A model block is a run of consecutive parameters with equal LayoutParameter::block. It is
// unrelated to block_elements. Layouts derived by hand are in test_shard_layout.cpp.
#include <algorithm>
#include <random>

#include "dist/shard_layout.h"
#include "tests/support/catch.h"

using tessera::dist::block_elements;
using tessera::dist::Bucket;
using tessera::dist::LayoutParameter;
using tessera::dist::ParameterSlot;
using tessera::dist::Range;
using tessera::dist::ShardLayout;

namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

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
    // The padding is less than block_elements per rank, so no smaller shard would be enough.
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
      REQUIRE(p == expected--);  // reverse order of registration, across buckets too
      const ParameterSlot& slot = layout.slot(p);
      const LayoutParameter& parameter = layout.parameters()[static_cast<size_t>(p)];
      REQUIRE(slot.bucket == static_cast<int>(b));
      REQUIRE(slot.elements == parameter.elements);
      REQUIRE(slot.offset % block_elements == 0);
      REQUIRE(slot.offset == round_up(end, block_elements));
      REQUIRE(layout.buckets()[b].shared == parameter.shared);
      REQUIRE(layout.buckets()[b].block == parameter.block);
      end = slot.offset + slot.elements;
      sum += slot.elements;
    }
  }
  REQUIRE(expected == -1);
  REQUIRE(layout.parameter_elements() == sum);
}

// Checks that the parameters of a bucket take more than bucket_elements only if at most one of them
// has elements. Also checks that each bucket but the last was closed for one of these reasons:
//   the bucket or the next one has a shared parameter;
//   the next parameter is in another model block;
//   with the next parameter, its parameters would have taken more than bucket_elements.
void check_closing(const ShardLayout& layout, int64_t bucket_elements) {
  const auto& buckets = layout.buckets();
  for (size_t b = 0; b < buckets.size(); ++b) {
    const ParameterSlot& last = layout.slot(buckets[b].parameters.back());
    const int64_t end = last.offset + last.elements;
    int with_elements = 0;
    for (const int p : buckets[b].parameters) with_elements += layout.slot(p).elements > 0;
    if (with_elements > 1) REQUIRE(end <= bucket_elements);
    if (b + 1 == buckets.size() || buckets[b].shared || buckets[b + 1].shared) continue;
    if (buckets[b].block != buckets[b + 1].block) continue;
    const ParameterSlot& next = layout.slot(buckets[b + 1].parameters.front());
    REQUIRE(round_up(end, block_elements) + next.elements > bucket_elements);
  }
}

// Returns the ranks to check for a parameter: all ranks if there are at most 64, or else the first
// and the last rank of the job, and the ranks around the parameter's first, middle and last owner.
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
      // Each range begins where the previous rank's ends, so all ranges tile the parameter.
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

// Arguments of a layout, drawn from `random`.
struct RandomLayout {
  explicit RandomLayout(std::mt19937_64& random) : random_(random) {
    const int64_t count = below(40);
    for (int64_t p = 0; p < count; ++p) {
      constexpr int64_t bounds[] = {2, 300, 5000, 3'000'000};
      const int64_t size = below(bounds[below(4)]);
      const int64_t aligned = below(4) == 0 ? round_up(size, block_elements) : size;
      parameters.push_back({"p", aligned, below(10) == 0});
    }
    constexpr int64_t bucket_sizes[] = {1, 255, 256, 4096, 1'000'000, int64_t{1} << 40};
    bucket_elements = bucket_sizes[below(6)];
    constexpr int64_t rank_counts[] = {1,  2,  3,    4,    5,       7,        8,
                                       13, 64, 1000, 4099, 999'983, 1'000'000};
    ranks = rank_counts[below(13)];
  }

  int64_t below(int64_t bound) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound));
  }

  std::vector<LayoutParameter> parameters;
  int64_t ranks = 1;
  int64_t bucket_elements = 1;

 private:
  std::mt19937_64& random_;
};

}  // namespace

TEST_CASE("properties of layouts over random parameters and ranks") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 400; ++round) {
    const RandomLayout r(random);
    INFO("round " << round << ", ranks " << r.ranks << ", buckets of " << r.bucket_elements);
    check_all(ShardLayout(r.parameters, r.ranks, r.bucket_elements), r.bucket_elements);
  }
}

// Consecutive parameters of one model block must be laid out as if they were alone. The layouts of
// successive model blocks must follow each other.
TEST_CASE("a layout with blocks is the concatenation of its blocks' layouts") {
  std::mt19937_64 random(8);
  for (int round = 0; round < 400; ++round) {
    RandomLayout r(random);
    const int64_t changes = 1 + r.below(6);  // about one in `changes` parameters draws a new block
    int64_t block = -1;
    for (LayoutParameter& parameter : r.parameters) {
      if (r.below(changes) == 0) block = r.below(4) - 1;
      parameter.block = block;
    }
    INFO("round " << round << ", ranks " << r.ranks << ", buckets of " << r.bucket_elements);
    const ShardLayout layout(r.parameters, r.ranks, r.bucket_elements);
    check_all(layout, r.bucket_elements);

    size_t bucket = 0;
    int64_t offset = 0;
    for (size_t end = r.parameters.size(); end > 0;) {
      size_t begin = end - 1;
      while (begin > 0 && r.parameters[begin - 1].block == r.parameters[begin].block) --begin;
      std::vector<LayoutParameter> run;
      for (size_t p = begin; p < end; ++p) run.push_back({"p", r.parameters[p].elements,
                                                          r.parameters[p].shared});
      const ShardLayout alone(run, r.ranks, r.bucket_elements);
      for (const Bucket& expected : alone.buckets()) {
        const Bucket& actual = layout.buckets().at(bucket++);
        REQUIRE(actual.offset == offset + expected.offset);
        REQUIRE(actual.elements == expected.elements);
        REQUIRE(actual.parameters.size() == expected.parameters.size());
        REQUIRE(actual.parameters[0] == static_cast<int>(begin) + expected.parameters[0]);
        REQUIRE(actual.block == r.parameters[begin].block);
      }
      offset += alone.flat_elements();
      end = begin;
    }
    REQUIRE(bucket == layout.buckets().size());
    REQUIRE(offset == layout.flat_elements());
  }
}

TEST_CASE("parameters of one block have the same buckets as parameters without blocks") {
  std::mt19937_64 random(9);
  for (int round = 0; round < 100; ++round) {
    RandomLayout r(random);
    const ShardLayout without(r.parameters, r.ranks, r.bucket_elements);
    for (LayoutParameter& parameter : r.parameters) parameter.block = 3;
    const ShardLayout with(r.parameters, r.ranks, r.bucket_elements);
    REQUIRE(with.flat_elements() == without.flat_elements());
    REQUIRE(with.buckets().size() == without.buckets().size());
    for (size_t b = 0; b < with.buckets().size(); ++b) {
      REQUIRE(with.buckets()[b].parameters == without.buckets()[b].parameters);
      REQUIRE(with.buckets()[b].elements == without.buckets()[b].elements);
    }
  }
}

TEST_CASE("properties of a layout without elements") {
  const ShardLayout layout({{"a"}, {"b"}}, 3, 100);
  REQUIRE(layout.buckets().size() == 1);
  check_all(layout, 100);
}
