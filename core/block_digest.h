// A digest of named numbers that is the same whoever holds which part of them: the sum modulo 2^128
// of a digest of each block of 256 elements, XXH3-128 (Collet, xxhash.com) of its bytes and, over
// that, of the name and of the block's number. Parts are digested where they are, and added up.
//
//   BlockDigest digest = digest_of_blocks("wte.weight/exp_avg", 0, 4, first_half);
//   digest += digest_of_blocks("wte.weight/exp_avg", 131072, 4, second_half);
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace tessera {

struct BlockDigest {
  uint64_t low = 0;
  uint64_t high = 0;

  BlockDigest& operator+=(const BlockDigest& other);
  bool operator==(const BlockDigest&) const = default;
  /// 32 hexadecimal digits.
  std::string text() const;
  /// Nothing where that is not what `text` has.
  static std::optional<BlockDigest> parse(std::string_view text);
};

inline constexpr int64_t digest_block = 256;  // elements

/// Of the elements from `first` on, a multiple of 256, of `element_bytes` each. The last block may
/// be short only where the numbers end.
BlockDigest digest_of_blocks(std::string_view name, int64_t first, int64_t element_bytes,
                             std::span<const std::byte> bytes);

}  // namespace tessera
