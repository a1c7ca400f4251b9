// The largest square image that data can be resized to and that a model can be built for.
#pragma once

#include <cstdint>

namespace tessera {

inline constexpr int64_t most_image_side = 16384;  // pixels of a side

}  // namespace tessera
