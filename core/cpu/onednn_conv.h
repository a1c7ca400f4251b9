// Convolutions by oneDNN's algorithm convolution_direct. Images are (N, H, W, C), and weights are
// (O, C / groups, kh, kw) as torch stores them. oneDNN is 2 to 4 times as fast if it may choose the
// weight's layout. If the chosen layout differs from the caller's, the forward and the input's
// gradient begin by copying the weight to the workspace, in the chosen layout. The weight's
// gradient is computed in the chosen layout, and then copied to the caller's layout.
#pragma once

#include <cstdint>

#include "core/ops/conv2d.h"

namespace tessera::cpu::onednn {

/// One pass of a convolution. Sizes are above zero, and has_instructions_for (core/cpu/onednn.h)
/// accepts the dtype. Products are added in f32, and each result is rounded once.
struct ConvArgs {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dSizes sizes;
  DType dtype = DType::f32;
  bool has_bias = false;  // forward only
};

/// The memory of a pass. ConvArgs::pass decides whether x, weight or y is the destination.
struct ConvMemory {
  void* x = nullptr;          // or dx
  void* weight = nullptr;     // or dweight
  void* y = nullptr;          // or dy
  void* bias = nullptr;       // (O)
  void* workspace = nullptr;  // conv_workspace_bytes(args), 64-byte aligned
};

/// Computes one pass with the calling thread's number of threads. The result's bits depend on this
/// number, the arguments and the values, never on addresses.
void convolve(const ConvArgs& args, const ConvMemory& memory);

/// Bytes of workspace that convolve needs with the calling thread's number of threads.
int64_t conv_workspace_bytes(const ConvArgs& args);

/// The number of convolutions whose primitives the calling thread keeps, at most most_primitives
/// (core/cpu/onednn.h).
int64_t kept_convolutions();

}  // namespace tessera::cpu::onednn
