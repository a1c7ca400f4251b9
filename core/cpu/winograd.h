// Winograd's algorithm F(4 x 4, 3 x 3) for 3x3 convolutions of f32 images (Lavin and Gray, "Fast
// Algorithms for Convolutional Neural Networks", 2015, arXiv:1509.09308). For each tile of 4 x 4
// pixels of y, and each pair of an input channel and an output channel, the algorithm needs 36
// multiplications. Direct sums, of 9 products for each pixel of y, need 144.
//
// A tile of y depends on 6 x 6 pixels of x, which are the tile and a border of one pixel. The
// algorithm transforms squares of pixels and weights by the constant matrices A, B and G. With d
// for the pixels of x and g for the weight,
//
//   forward             y  = A^T [sum over channels of (G g G^T) * (B^T d B)] A
//   gradient of x       as the forward, with dy as d, the weight turned by 180 degrees as g, and
//                       the sum over output channels
//   gradient of weight  dg = G^T [sum over tiles of (A dy A^T) * (B^T d B)] G
//
// where * multiplies two squares of 6 x 6 numbers position by position. For each of the 36
// positions, the sums for all channels and many tiles are one matrix product, which oneDNN
// computes. The transforms are our own loops, because oneDNN has Winograd's algorithm only in
// version 2 and only for AVX-512.
#pragma once

#include <cstdint>

#include "core/cpu/onednn_conv.h"

namespace tessera::cpu::winograd {

/// True if the algorithm can compute the pass and is faster than direct sums:
///
///   - f32, a 3x3 kernel, one group; stride, padding and dilation are 1;
///   - both numbers of channels are multiples of 16;
///   - both numbers of channels are at most twice the number of pixels in all images. With fewer
///     pixels, transforming the weight takes more time than the algorithm saves.
///
/// The answer is the same on all processors.
bool suits(const onednn::ConvArgs& args);

/// Computes one pass that suits() accepts, with the calling thread's number of threads.
/// memory.workspace must have workspace_bytes(args), not onednn::conv_workspace_bytes(args).
void convolve(const onednn::ConvArgs& args, const onednn::ConvMemory& memory);

/// Bytes of workspace that convolve needs with the calling thread's number of threads.
int64_t workspace_bytes(const onednn::ConvArgs& args);

}  // namespace tessera::cpu::winograd
