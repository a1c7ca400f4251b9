#include "core/digest.h"

#include <algorithm>

// Compiles xxHash from its header, so that neither Tessera nor a program that uses Tessera has to
// link the xxHash library.
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "core/text/input_file.h"

namespace tessera {

uint64_t xxh3(std::span<const std::byte> bytes, uint64_t seed) {
  return XXH3_64bits_withSeed(bytes.data(), bytes.size(), seed);
}

uint64_t xxh3(const std::string& text, uint64_t seed) {
  return xxh3(std::as_bytes(std::span(text)), seed);
}

uint64_t digest_of_list(const std::vector<std::string>& texts, uint64_t seed) {
  const uint64_t count = texts.size();
  uint64_t digest = xxh3(std::as_bytes(std::span(&count, 1)), seed);
  for (const std::string& text : texts) digest = xxh3(text, digest);
  return digest;
}

FileDigest digest_of_file(const std::string& path, bool whole) {
  constexpr int64_t sampled = 64;
  constexpr int64_t sampled_bytes = 4096;
  constexpr int64_t buffer_bytes = 1 << 20;
  const InputFile file(path);
  FileDigest result{.bytes = file.size()};
  std::vector<char> buffer(buffer_bytes);
  const auto take = [&](int64_t begin, int64_t bytes) {
    file.read_at(begin, buffer.data(), static_cast<size_t>(bytes));
    result.digest =
        xxh3(std::as_bytes(std::span(buffer).first(static_cast<size_t>(bytes))), result.digest);
  };
  if (whole || result.bytes <= sampled * sampled_bytes) {
    for (int64_t at = 0; at < result.bytes; at += buffer_bytes) {
      take(at, std::min(buffer_bytes, result.bytes - at));
    }
    return result;
  }
  const int64_t last = result.bytes - sampled_bytes;
  for (int64_t i = 0; i < sampled; ++i) {
    // Sampled block i begins at byte i * last / (sampled - 1), rounded down. The code avoids the
    // product i * last, which could overflow.
    take(last / (sampled - 1) * i + last % (sampled - 1) * i / (sampled - 1), sampled_bytes);
  }
  return result;
}

}  // namespace tessera
