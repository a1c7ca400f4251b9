// Computes the offsets of pieces that follow each other in a buffer, in rank order.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace tessera::dist {

/// Returns, for each piece, the sum of the lengths before it, in the unit of `lengths`.
inline std::vector<int64_t> offsets_of(std::span<const int64_t> lengths) {
  std::vector<int64_t> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace tessera::dist
