// Pseudo-random numbers that are equal in a benchmark and in its PyTorch peer (bench/peers).
#pragma once

#include <cstdint>

namespace tessera::bench {

/// The finalizer of MurmurHash3. bench/peers/recommender_step.py and bench/peers/table_step.py use
/// the same function (bench/peers/mixed.py).
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace tessera::bench
