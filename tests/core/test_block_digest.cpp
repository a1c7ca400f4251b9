#include "core/block_digest.h"

#include <numeric>
#include <vector>

#include "core/error.h"
#include "tests/support/catch.h"

namespace tessera::test {
namespace {

std::vector<float> numbers(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) * 0.25f - 7;
  return values;
}

BlockDigest digest(const std::string& name, std::span<const float> values, int64_t first = 0) {
  return digest_of_blocks(name, first, sizeof(float), std::as_bytes(values));
}

TEST_CASE("a digest of blocks equals that of Python's xxhash package") {
  // The expected digest of 600 numbers was computed with Python's xxhash.xxh3_128_intdigest, by the
  // rule in docs/checkpoints.md.
  CHECK(digest("wte.weight/exp_avg", numbers(600)).text() == "5ccdc569509bba0f291187c546181592");
}

TEST_CASE("digests of parts add up to the digest of the whole, in any order") {
  const std::vector<float> values = numbers(1000);
  const auto part = [&](int64_t begin, int64_t end) {
    return digest(
        "w",
        std::span(values).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        begin);
  };
  BlockDigest sum = part(768, 1000);
  sum += part(0, 512);
  sum += part(512, 768);
  CHECK(sum == digest("w", values));
}

TEST_CASE("other values, positions or names give another digest") {
  const std::vector<float> values = numbers(512);
  const BlockDigest whole = digest("w", values);
  CHECK(digest("v", values) != whole);
  std::vector<float> swapped(values.begin() + 256, values.end());
  swapped.insert(swapped.end(), values.begin(), values.begin() + 256);
  CHECK(digest("w", swapped) != whole);
  std::vector<float> other = values;
  other[300] = -other[300];
  CHECK(digest("w", other) != whole);
  CHECK(digest("w", {}) == BlockDigest{});
  CHECK_THROWS_WITH(digest("w", values, 1),
                    "digest: the part begins at element 1 of w, expected a multiple of 256");
}

TEST_CASE("digests are added modulo 2^128, and can be written and read back") {
  BlockDigest sum{~uint64_t{0}, 1};
  sum += {2, ~uint64_t{0}};
  CHECK(sum == BlockDigest{1, 1});
  CHECK(sum.text() == "00000000000000010000000000000001");
  CHECK(BlockDigest::parse(sum.text()) == sum);
  for (const char* text :
       {"", "1", "0000000000000001000000000000000G", "000000000000000100000000000000011",
        "+0000000000000010000000000000001", "0000000000000001000000000000000A"}) {
    CHECK_FALSE(BlockDigest::parse(text).has_value());
  }
}

}  // namespace
}  // namespace tessera::test
