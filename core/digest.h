// Digests of 64 bits: xxHash's XXH3 (Collet, xxhash.com), which says whether two ranks read the
// same. It guards against mistakes, not against attacks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace tessera {

/// XXH3_64bits_withSeed of `bytes`. With the digest of what comes before it as its seed it digests
/// both.
uint64_t xxh3(std::span<const std::byte> bytes, uint64_t seed = 0);
uint64_t xxh3(const std::string& text, uint64_t seed = 0);

struct FileDigest {
  int64_t bytes = 0;  // of the whole file
  uint64_t digest = 0;
};

/// Digests 64 blocks of 4 KiB at fixed places, evenly spread from the begin of a file to its end,
/// or all of it where `whole` asks for that or the blocks would cover it. Throws InputError where
/// the file cannot be opened or is not a regular one, and Error where reading fails.
FileDigest digest_of_file(const std::string& path, bool whole = false);

}  // namespace tessera
