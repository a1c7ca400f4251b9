// Convolutions by cuDNN: core/cuda/cudnn_conv.cpp is the one place that knows it. Images are (N, H,
// W, C), and filters have their channels last too: (O, kh, kw, C / groups).
//
// A pass over some sizes has one algorithm (core/convolution_choices.h), of which the library says
// that its additions have one order: so results have the same bits in every call, and on every rank
// with the same library, kind of GPU and choice. Sums are f32, without TF32, and each result is
// rounded once.
#pragma once

#include <cstdint>

#include "core/ops/conv2d.h"

namespace tessera::cuda {

/// One pass over sizes above zero.
struct ConvArgs {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dSizes sizes;
  DType dtype = DType::f32;
};

/// What each pass reads and writes: of x, filter and y one is the destination.
struct ConvMemory {
  void* x = nullptr;        // or dx
  void* filter = nullptr;   // or its gradient
  void* y = nullptr;        // or dy
  bool accumulate = false;  // add to the destination, once per element, before it is rounded
};

/// On the context's stream. Throws for memory that does not begin at a multiple of 16 bytes, where
/// the library cannot be loaded, and for what it refuses.
void convolve(const Context& context, const ConvArgs& args, const ConvMemory& memory);

/// What convolve takes of the workspace.
int64_t conv_workspace_bytes(const Context& context, const ConvArgs& args);

}  // namespace tessera::cuda
