#include "core/random.h"

#include <bit>
#include <utility>

#include "core/error.h"

namespace tessera {

RandomStream::RandomStream(uint64_t seed, std::string_view purpose, uint64_t index)
    : key_(philox_key(seed)) {
  const uint64_t hash = stable_hash(purpose);
  // Word 0 counts the blocks of four numbers drawn so far. Word 1 is a hash of the purpose, words 2
  // and 3 are the index.
  counter_ = {0, static_cast<uint32_t>(hash) ^ static_cast<uint32_t>(hash >> 32),
              static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32)};
}

uint32_t RandomStream::next_u32() {
  if (used_ == 4) {
    block_ = philox(counter_, key_);
    ++counter_[0];
    used_ = 0;
  }
  return block_[static_cast<size_t>(used_++)];
}

uint64_t RandomStream::below(uint64_t bound) {
  TESSERA_CHECK(bound > 0, "random: bound is 0, expected at least 1");
  // Multiply-shift without bias (Lemire, "Fast random integer generation in an interval", 2019).
  __extension__ using uint128 = unsigned __int128;
  uint128 product = uint128{next_u64()} * bound;
  if (static_cast<uint64_t>(product) < bound) {
    const uint64_t threshold = -bound % bound;
    while (static_cast<uint64_t>(product) < threshold) product = uint128{next_u64()} * bound;
  }
  return static_cast<uint64_t>(product >> 64);
}

uint64_t permuted(uint64_t index, uint64_t count, uint64_t seed, std::string_view purpose,
                  uint64_t which) {
  TESSERA_CHECK(index < count && count <= uint64_t{1} << 62,
                "random: index {} in a permutation of {} numbers, expected an index less than "
                "their number, and at most 2^62 numbers",
                index, count);
  const PhiloxKey key = philox_key(seed ^ stable_hash(purpose));
  const int half = (std::bit_width(count - 1) + 1) / 2;  // bits in each half of an index
  const uint64_t mask = (uint64_t{1} << half) - 1;
  do {
    uint64_t left = index >> half;
    uint64_t right = index & mask;
    for (uint32_t round = 0; round < 4; ++round) {
      const PhiloxCounter words =
          philox({static_cast<uint32_t>(right), round, static_cast<uint32_t>(which),
                  static_cast<uint32_t>(which >> 32)},
                 key);
      left = std::exchange(right, (left ^ words[0]) & mask);
    }
    index = left << half | right;
  } while (index >= count);
  return index;
}

void DropoutState::check_unambiguous() const {
  TESSERA_CHECK(!is_ambiguous,
                "dropout: micro-batches of two optimizers are open on this thread, so the mask to "
                "draw is unknown; finish one, with backward() or skip(), before the other begins");
}

DropoutState& dropout_state() {
  thread_local DropoutState state;
  return state;
}

}  // namespace tessera
