// Convolutions by oneDNN. Images are (N, H, W, C), weights (O, C / groups, kh, kw) as torch stores
// them. oneDNN chooses another layout for weights, with which it is 2 to 4 times as fast, and
// for Winograd's algorithm one for images too; every call brings there what it reads, and back what
// it writes, through the workspace.
#pragma once

#include <cstdint>

#include "core/ops/conv2d.h"

namespace tessera::cpu::onednn {

/// One pass over sizes above zero, in f32 or in a dtype that has_instructions_for. Sums are f32,
/// and each result is rounded once; so are the transforms of Winograd's algorithm, which has f32
/// alone.
struct ConvArgs {
  Conv2dPass pass = Conv2dPass::forward;
  Conv2dSizes sizes;
  DType dtype = DType::f32;
  bool has_bias = false;  // forward only
};

/// What each pass reads and writes: of x, weight and y one is the destination.
struct ConvMemory {
  void* x = nullptr;          // or dx
  void* weight = nullptr;     // or dweight
  void* y = nullptr;          // or dy
  void* bias = nullptr;       // (O)
  void* workspace = nullptr;  // conv_workspace_bytes(args) on a cache line
};

/// One call of the library, with the calling thread's number of threads: bits depend on these, the
/// arguments and the values, never on addresses.
void convolve(const ConvArgs& args, const ConvMemory& memory);

int64_t conv_workspace_bytes(const ConvArgs& args);

/// How many convolutions' primitives the calling thread keeps, at most most_primitives.
int64_t kept_convolutions();

}  // namespace tessera::cpu::onednn
