// Random numbers that depend only on a seed, a purpose and an index, never on when or where they
// are drawn. The generator is Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3", SC 2011).
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <string_view>

namespace tessera {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

/// Returns four random words for a counter and a key.
constexpr PhiloxCounter philox(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
               static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
               static_cast<uint32_t>(product0)};
    key = {key[0] + 0x9E3779B9, key[1] + 0xBB67AE85};
  }
  return counter;
}

constexpr PhiloxKey philox_key(uint64_t seed) {
  return {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
}

/// Returns the 64-bit FNV-1a hash of a text, which is equal on all machines.
constexpr uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xcbf29ce484222325;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001b3;
  return hash;
}

/// Returns a multiple of 2^-24 in (0, 1]. The result is uniform if `bits` is uniform.
constexpr float uniform_float(uint32_t bits) {
  return static_cast<float>((bits >> 8) + 1) * 0x1p-24f;
}

/// A sequence of random numbers that is a function of (seed, purpose, index).
class RandomStream {
 public:
  RandomStream(uint64_t seed, std::string_view purpose, uint64_t index);
  uint32_t next_u32();
  uint64_t next_u64() {
    // Two statements, because C++ does not fix the order of two calls in one expression.
    const uint64_t high = next_u32();
    return high << 32 | next_u32();
  }
  /// Returns a uniform number in [0, bound). Throws if `bound` is 0.
  uint64_t below(uint64_t bound);
  float uniform() { return uniform_float(next_u32()); }

 private:
  PhiloxKey key_;
  PhiloxCounter counter_;
  PhiloxCounter block_{};
  int used_ = 4;
};

/// Returns the image of `index` under a permutation of [0, count). Seed, purpose and `which` select
/// the permutation. Feistel rounds permute [0, P), where P is the smallest power of four with
/// P >= count. The rounds are repeated until the result is below `count`, so no table is needed
/// (Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002). Throws unless
/// index < count <= 2^62.
uint64_t permuted(uint64_t index, uint64_t count, uint64_t seed, std::string_view purpose,
                  uint64_t which);

/// Dropout's masks depend on the layer, the element and this state: a seed, a training step, and
/// the first sample of a forward. A ZeroOptimizer, or your own loop over micro-batches, sets the
/// state. Each thread has its own state. Dropout with a probability above 0 throws until the
/// thread's state is set, because a state that never changes would give every step the same masks.
struct DropoutState {
  static constexpr int64_t not_set = -1;

  uint64_t seed = 0;
  int64_t step = not_set;
  int64_t first_sample = 0;  // row 0 of dropout's input is this sample of the global batch
  // True while micro-batches of two or more optimizers are unfinished on the thread. Then dropout
  // cannot know which optimizer's state to use.
  bool is_ambiguous = false;

  bool is_set() const { return step != not_set; }
  /// True if samples [first_sample, first_sample + count) are from 0 to 2^32 - 1, as masks need.
  bool has_samples(int64_t count) const {
    constexpr int64_t limit = int64_t{1} << 32;
    return first_sample >= 0 && first_sample <= limit - count;
  }
  /// Throws if is_ambiguous.
  void check_unambiguous() const;
  bool operator==(const DropoutState&) const = default;
};
/// Returns the calling thread's dropout state, which is not set at first.
DropoutState& dropout_state();

/// The dropout state in the form that kernels read. core/ops/dropout.cpp describes how kernels
/// compute masks from this form.
struct DropoutDraws {
  PhiloxKey key{};
  uint32_t first_sample = 0;
};
constexpr DropoutDraws dropout_draws(const DropoutState& state) {
  constexpr auto purpose = static_cast<uint32_t>(stable_hash("dropout"));
  const auto step = static_cast<uint64_t>(state.step);
  const PhiloxCounter words =
      philox({static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32), purpose, 0},
             philox_key(state.seed));
  return {{words[0], words[1]}, static_cast<uint32_t>(state.first_sample)};
}

}  // namespace tessera
