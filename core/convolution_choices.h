// Chooses a cuDNN algorithm for each pass of a convolution on CUDA. The choice is made once, when
// the pass is first computed, or when the size of its workspace is first queried. The choice is the
// first of cuDNN's proposals
//  - whose additions have a fixed order,
//  - that cuDNN accepts with a math type that does not round the inputs, and
//  - that takes at most 512 MiB of workspace.
// A process may also take over the choices of another process of the job, so that both processes
// compute the same bits. A build without CUDA or cuDNN has no convolutions on a GPU, and no
// choices.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/conv2d.h"

namespace tessera::cuda {

/// One pass of a convolution and its algorithm: plain data that can be sent to another process.
struct ConvolutionChoice {
  Conv2dSizes sizes;
  int32_t algorithm = 0;  // a value of cuDNN's enumeration for the pass
  int32_t math = 0;       // a cudnnMathType_t
  DType dtype = DType::f32;
  Conv2dPass pass = Conv2dPass::forward;

  bool operator==(const ConvolutionChoice&) const = default;
};

/// The version of cuDNN, 91300 for 9.13.0; 0 if cuDNN cannot be loaded or the build has none.
int64_t convolution_library_version();

/// Returns all choices that this process has made or taken over so far for the device.
std::vector<ConvolutionChoice> convolution_choices(int device);

/// From now on, each pass in `choices` uses the algorithm of its entry, even if another one was
/// chosen before. Throws and changes nothing if cuDNN refuses an algorithm, or if an algorithm's
/// workspace is too large. Always throws in a build without cuDNN.
void use_convolution_choices(int device, const std::vector<ConvolutionChoice>& choices);

}  // namespace tessera::cuda
