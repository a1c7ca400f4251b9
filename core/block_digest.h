// A digest of a named array that does not depend on how the array is sharded. Each block of 256
// elements is hashed with XXH3-128 (Collet, xxhash.com); this hash, the hash of the name and the
// block's number are hashed again, and the results are summed modulo 2^128. Each shard is digested
// where it is, and the digests are added.
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
  /// The inverse of text(). Returns nullopt for any other text.
  static std::optional<BlockDigest> parse(std::string_view text);
};

inline constexpr int64_t digest_block = 256;  // elements

/// Digests the array's elements from `first` on, a multiple of 256. `bytes` holds them,
/// `element_bytes` each. The last block may be short only at the end of the array.
BlockDigest digest_of_blocks(std::string_view name, int64_t first, int64_t element_bytes,
                             std::span<const std::byte> bytes);

}  // namespace tessera
