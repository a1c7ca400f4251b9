// Which of cuDNN's algorithms a convolution takes on CUDA: of those that the library proposes for
// it the first whose additions have one order, that rounds no input, and that the library accepts;
// or the one that another process of the job has chosen. It is chosen once, when the convolution is
// first computed or its workspace is asked for. A build without CUDA or without cuDNN has no
// convolutions on a GPU, and no choices.
#pragma once

#include <cstdint>
#include <vector>

#include "core/ops/conv2d.h"

namespace tessera::cuda {

/// One pass of a convolution and its algorithm: plain data, for another process of the program.
struct ConvolutionChoice {
  Conv2dSizes sizes;
  int32_t algorithm = 0;  // of the library's enumeration for the pass
  int32_t math = 0;       // a cudnnMathType_t
  DType dtype = DType::f32;
  Conv2dPass pass = Conv2dPass::forward;

  bool operator==(const ConvolutionChoice&) const = default;
};

/// The version of cuDNN, as 91300 for 9.13.0; 0 where it is not there.
int64_t convolution_library_version();

/// All choices that this process has made so far on the device.
std::vector<ConvolutionChoice> convolution_choices(int device);

/// From now on these convolutions take these algorithms. Throws, and changes nothing, where the
/// library does not accept one.
void use_convolution_choices(int device, const std::vector<ConvolutionChoice>& choices);

}  // namespace tessera::cuda
