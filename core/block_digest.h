// A digest of a named array that does not depend on how the array is sharded. Each block of 256
// elements is hashed with XXH3-128 (Collet, xxhash.com). Then three things are hashed together: the
// block's hash, the name's hash, and the block's number. The results of all blocks are summed
// modulo 2^128. So each rank digests its own shard, and the sum of the shards' digests is the
// array's digest.
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
  /// Returns the digest as 32 hexadecimal digits.
  std::string text() const;
  /// Reads the digest from the form that text() returns. Returns nullopt for any other text.
  static std::optional<BlockDigest> parse(std::string_view text);
};

inline constexpr int64_t digest_block = 256;  // elements

/// Digests a part of the array `name`: the elements in `bytes`, each of `element_bytes` bytes.
/// `first` is the index of the part's first element. Throws unless `first` is a multiple of 256.
/// The part's length must be a multiple of 256 elements too, unless the part ends the array.
BlockDigest digest_of_blocks(std::string_view name, int64_t first, int64_t element_bytes,
                             std::span<const std::byte> bytes);

}  // namespace tessera
