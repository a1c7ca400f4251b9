// Options of operations, shared by the operations' callers and by their launchers.
#pragma once

#include <cstdint>

namespace tessera {

/// The function that an operation applies to its result.
enum class Activation : uint8_t { none, gelu };
/// How a Linear stores its weight: [in, out] as GPT-2 does, or [out, in] as torch.nn.Linear does.
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
  Size2 dilation = 1;  // distance between the pixels that neighbouring weights multiply
  int64_t groups = 1;  // number of groups of channels, each convolved separately
  bool operator==(const Conv2dOptions&) const = default;
};

struct PoolOptions {
  Size2 kernel = 1;
  Size2 stride = 1;
  Size2 padding = 0;  // on each side; at most half the kernel
};

}  // namespace tessera
