// Where the pieces of a buffer begin if they stand one after the other, in the order of ranks.
#pragma once

#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

namespace tessera::dist {

/// The sum of the lengths before each one, in the unit of `lengths`.
inline std::vector<int64_t> offsets_of(std::span<const int64_t> lengths) {
  std::vector<int64_t> offsets(lengths.size());
  std::exclusive_scan(lengths.begin(), lengths.end(), offsets.begin(), int64_t{0});
  return offsets;
}

}  // namespace tessera::dist
