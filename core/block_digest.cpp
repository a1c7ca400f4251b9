#include "core/block_digest.h"

#include <algorithm>
#include <array>
#include <charconv>

// GCC 12 warns about the undefined operands of its own AVX-512 intrinsics.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/error.h"

namespace tessera {

BlockDigest& BlockDigest::operator+=(const BlockDigest& other) {
  low += other.low;
  high += other.high + (low < other.low ? 1 : 0);
  return *this;
}

std::string BlockDigest::text() const { return fmt::format("{:016x}{:016x}", high, low); }

std::optional<BlockDigest> BlockDigest::parse(std::string_view text) {
  constexpr size_t digits = 16;
  if (text.size() != 2 * digits) return std::nullopt;
  BlockDigest digest;
  const auto half = [&](size_t begin, uint64_t& value) {
    const char* const end = text.data() + begin + digits;
    return std::from_chars(text.data() + begin, end, value, 16).ptr == end;
  };
  if (!half(0, digest.high) || !half(digits, digest.low)) return std::nullopt;
  return digest.text() == text ? std::optional(digest) : std::nullopt;
}

BlockDigest digest_of_blocks(std::string_view name, int64_t first, int64_t element_bytes,
                             std::span<const std::byte> bytes) {
  TESSERA_CHECK(first % digest_block == 0,
                "digest: the part begins at element {} of {}, expected a multiple of {}", first,
                name, digest_block);
  const auto of_name = XXH3_128bits(name.data(), name.size());
  const auto block_bytes = static_cast<size_t>(digest_block * element_bytes);
  BlockDigest digest;
  auto number = static_cast<uint64_t>(first / digest_block);
  for (size_t at = 0; at < bytes.size(); at += block_bytes, ++number) {
    const auto block = XXH3_128bits(bytes.data() + at, std::min(block_bytes, bytes.size() - at));
    const std::array<uint64_t, 5> keyed{block.low64, block.high64, of_name.low64, of_name.high64,
                                        number};
    const auto own = XXH3_128bits(keyed.data(), sizeof(keyed));
    digest += {own.low64, own.high64};
  }
  return digest;
}

}  // namespace tessera
