// Pseudo-random numbers that a benchmark and its peer draw alike.
#pragma once

#include <cstdint>

namespace tessera::bench {

/// The finalizer of MurmurHash3. bench/peers/recommender_step.py and table_step.py draw the same
/// numbers with it.
inline uint32_t mixed(uint32_t x) {
  x = (x ^ (x >> 16)) * 0x85ebca6bu;
  x = (x ^ (x >> 13)) * 0xc2b2ae35u;
  return x ^ (x >> 16);
}

}  // namespace tessera::bench
