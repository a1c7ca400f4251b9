// Tests Philox (with its authors' test vectors), the functions that are built on Philox,
// stable_hash, and dropout's state.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "tests/support/catch.h"

using namespace tessera;

TEST_CASE("philox gives Random123's known answers") {
  // These test vectors are the lines "philox4x32 10" of the file kat_vectors in Random123 1.14.
  CHECK(philox({0, 0, 0, 0}, {0, 0}) ==
        PhiloxCounter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  constexpr uint32_t ones = 0xffffffff;
  CHECK(philox({ones, ones, ones, ones}, {ones, ones}) ==
        PhiloxCounter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        PhiloxCounter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
  // Philox can be evaluated at compile time.
  static_assert(philox({0, 0, 0, 0}, {0, 0})[0] == 0x6627e8d5);
}

TEST_CASE("keys and hashes are the same on every machine") {
  CHECK(philox_key(0x1122334455667788) == PhiloxKey{0x55667788, 0x11223344});
  // These are test vectors of 64-bit FNV-1a.
  CHECK(stable_hash("") == 0xcbf29ce484222325);
  CHECK(stable_hash("a") == 0xaf63dc4c8601ec8c);
  CHECK(stable_hash("foobar") == 0x85944171f73967e8);
  // Bytes above 127 are positive numbers, whether or not char is signed.
  CHECK(stable_hash("\xff") == (0xcbf29ce484222325 ^ 0xff) * 0x100000001b3);
}

TEST_CASE("uniform floats lie in (0, 1]") {
  CHECK(uniform_float(0) == 0x1p-24f);
  CHECK(uniform_float(0xffffffff) == 1.0f);
  CHECK(uniform_float(0x80000000) == Catch::Approx(0.5));
}

TEST_CASE("a stream is a function of seed, purpose and index") {
  const auto draw = [](uint64_t seed, const char* purpose, uint64_t index) {
    RandomStream stream(seed, purpose, index);
    std::vector<uint32_t> values;
    for (int i = 0; i < 12; ++i) values.push_back(stream.next_u32());
    return values;
  };
  const auto base = draw(1, "sample", 2);
  CHECK(draw(1, "sample", 2) == base);
  CHECK(draw(2, "sample", 2) != base);
  CHECK(draw(1, "sampler", 2) != base);
  CHECK(draw(1, "sample", 3) != base);
  CHECK(draw(1 + (uint64_t{1} << 32), "sample", 2) != base);
  CHECK(draw(1, "sample", 2 + (uint64_t{1} << 32)) != base);
  // The 12 words, which come from three Philox blocks of four words, are all different.
  CHECK(std::set<uint32_t>(base.begin(), base.end()).size() == base.size());

  RandomStream words(1, "sample", 2);
  RandomStream wide(1, "sample", 2);
  const uint64_t high = words.next_u32();
  CHECK(wide.next_u64() == (high << 32 | words.next_u32()));
}

TEST_CASE("uniform draws have the moments of a uniform distribution") {
  RandomStream stream(7, "moments", 0);
  constexpr int draws = 200000;
  double sum = 0;
  double squares = 0;
  int outside = 0;
  for (int i = 0; i < draws; ++i) {
    const double value = stream.uniform();
    outside += value <= 0 || value > 1;
    sum += value;
    squares += value * value;
  }
  CHECK(outside == 0);
  // The bounds are five standard errors. One standard error is sqrt(1/12 / n) for the mean, and
  // sqrt(4/45 / n) for the mean of squares.
  CHECK(std::fabs(sum / draws - 0.5) < 5 * std::sqrt(1.0 / 12 / draws));
  CHECK(std::fabs(squares / draws - 1.0 / 3) < 5 * std::sqrt(4.0 / 45 / draws));
}

TEST_CASE("below() is unbiased") {
  RandomStream stream(3, "below", 0);
  for (int i = 0; i < 100; ++i) CHECK(stream.below(1) == 0);
  CHECK_THROWS_AS(stream.below(0), Error);

  SECTION("small bounds: chi-squared of the counts") {
    constexpr size_t bound = 13;
    constexpr int draws = 130000;
    std::array<int, bound> counts{};
    for (int i = 0; i < draws; ++i) ++counts.at(stream.below(bound));
    double chi_squared = 0;
    for (const int count : counts) {
      const double difference = count - draws / static_cast<double>(bound);
      chi_squared += difference * difference / (draws / static_cast<double>(bound));
    }
    CHECK(chi_squared < 39);  // with 12 degrees of freedom, one run in 10,000 exceeds 39
  }
  SECTION("bounds near 2^64, where a remainder would favour the lower third") {
    const uint64_t bound = uint64_t{3} << 62;
    constexpr int draws = 30000;
    int lower = 0;
    for (int i = 0; i < draws; ++i) {
      const uint64_t value = stream.below(bound);
      REQUIRE(value < bound);
      lower += value < bound / 3;
    }
    // With a plain modulo, half of the draws would be in the lower third.
    CHECK(std::fabs(lower / static_cast<double>(draws) - 1.0 / 3) < 0.014);
  }
}

TEST_CASE("permuted() gives every index once, and another order for another key") {
  for (const uint64_t count : {1, 2, 3, 4, 5, 17, 64, 100, 1000}) {
    std::vector<uint64_t> order;
    int fixed = 0;
    for (uint64_t i = 0; i < count; ++i) {
      order.push_back(permuted(i, count, 5, "test", 0));
      fixed += order.back() == i;
    }
    CAPTURE(count);
    if (count == 1000) CHECK(fixed < 10);
    if (count == 1000) CHECK(permuted(3, count, 5, "test", 1) != order[3]);
    std::sort(order.begin(), order.end());
    for (uint64_t i = 0; i < count; ++i) REQUIRE(order[i] == i);
  }
  CHECK(permuted(uint64_t{1} << 40, uint64_t{1} << 50, 5, "test", 0) < uint64_t{1} << 50);
  CHECK_THROWS_AS(permuted(3, 3, 5, "test", 0), Error);
}

TEST_CASE("each thread has a dropout state of its own", "[threads]") {
  const DropoutState before = dropout_state();
  dropout_state() = {.seed = 5, .step = 6, .first_sample = 7};
  std::thread([] {
    CHECK(dropout_state().seed == 0);
    CHECK_FALSE(dropout_state().is_set());
    dropout_state().seed = 9;
  }).join();
  CHECK(dropout_state().seed == 5);
  dropout_state() = before;
}
