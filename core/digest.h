// 64-bit digests by xxHash's XXH3 (Collet, xxhash.com). Ranks compare digests to check that they
// have read the same data. The digests guard against mistakes, not against attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace tessera {

/// Returns XXH3_64bits_withSeed of `bytes`. If the seed is the digest of preceding bytes, the
/// result is a digest of those bytes and `bytes` together.
uint64_t xxh3(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t xxh3(const std::string& text, uint64_t seed = 0);
/// Digests the number of texts, then each text. If several lists are digested one after the other,
/// the numbers show where each list ends. For example, {a} followed by {b, c} gets another digest
/// than {a, b} followed by {c}.
uint64_t digest_of_list(const std::vector<std::string>& texts, uint64_t seed = 0);

struct FileDigest {
  int64_t bytes = 0;  // size of the whole file, even if only 64 blocks of the file are digested
  uint64_t digest = 0;

  bool operator==(const FileDigest&) const = default;
};

/// Digests 64 blocks of 4 KiB, evenly spread from the beginning of a file to its end. Digests the
/// whole file if `whole` is true, or if the file has at most 256 KiB. Throws as InputFile does
/// (core/text/input_file.h).
FileDigest digest_of_file(const std::string& path, bool whole = false);

}  // namespace tessera
