// How causal_attention is cut on the CPU: a tile of scores and one of their gradients stay in the
// second-level cache, and products of this size run near the processor's peak.
#pragma once

#include <cstdint>

namespace tessera::cpu {

inline constexpr int64_t attention_tile_rows = 64;    // query rows at a time
inline constexpr int64_t attention_block_keys = 512;  // keys at a time, a multiple of tile_rows

}  // namespace tessera::cpu
