// Options of operations, for the public functions (core/ops.h, core/image_ops.h) and for the
// functions that launch kernels.
#pragma once

#include <cstdint>

namespace tessera {

/// The elementwise function that an operation such as linear applies to its result.
enum class Activation : uint8_t { none, gelu };
/// How the weight of linear is stored: [in, out] as in GPT-2, or [out, in] as in torch.nn.Linear.
enum class WeightLayout : uint8_t { in_out, out_in };

/// A height and a width. One number sets both.
struct Size2 {
  int64_t height = 0;
  int64_t width = 0;

  constexpr Size2(int64_t both) : height(both), width(both) {}  // NOLINT: allows {.stride = 2}
  constexpr Size2(int64_t h, int64_t w) : height(h), width(w) {}
  bool operator==(const Size2&) const = default;
};

struct Conv2dOptions {
  Size2 stride = 1;
  Size2 padding = 0;   // zeros on each side
  Size2 dilation = 1;  // distance in pixels between the inputs of neighbouring weights
  int64_t groups = 1;  // number of groups of channels; each group is convolved separately
  bool operator==(const Conv2dOptions&) const = default;
};

struct PoolOptions {
  Size2 kernel = 1;
  Size2 stride = 1;
  Size2 padding = 0;  // pixels on each side; at most half the kernel
};

}  // namespace tessera
