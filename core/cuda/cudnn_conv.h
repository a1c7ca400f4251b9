// Convolutions by cuDNN. Only core/cuda/cudnn_conv.cpp calls cuDNN. Images are (N, H, W, C), and
// filters have their channels last too: (O, kh, kw, C / groups).
//
// A pass with given sizes and dtype always uses one algorithm, unless use_convolution_choices
// replaces it (core/convolution_choices.h). According to cuDNN, the algorithm adds in a fixed
// order. So results have the same bits in every call with this algorithm, and on every rank with
// the same version of cuDNN, kind of GPU and choice of algorithm. Products are added in f32,
// without TF32, and the result is rounded to the dtype. With ConvMemory::accumulate, cuDNN also
// rounds the sum of products for some sizes, before it adds this sum to the destination.
#pragma once

#include <cstdint>

#include "core/ops/conv2d.h"

namespace tessera::cuda {

/// One pass of a convolution. Sizes are above zero.
struct ConvArgs {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dSizes sizes;
  DType dtype = DType::f32;
};

/// The memory of a pass. ConvArgs::pass decides whether x, filter or y is the destination.
struct ConvMemory {
  void* x = nullptr;        // or dx
  void* filter = nullptr;   // or its gradient
  void* y = nullptr;        // or dy
  bool accumulate = false;  // true: add to the destination; false: overwrite it
};

/// Computes the pass on the context's stream. Throws if an address in `memory` is not a multiple of
/// 16 bytes, if cuDNN cannot be loaded or refuses the convolution, or if none of the algorithms
/// that cuDNN proposes may be used (core/convolution_choices.h).
void convolve(const Context& context, const ConvArgs& args, const ConvMemory& memory);

/// Returns the bytes of workspace that convolve allocates for these arguments.
int64_t conv_workspace_bytes(const Context& context, const ConvArgs& args);

}  // namespace tessera::cuda
