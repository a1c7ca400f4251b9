// Which cuDNN algorithm a convolution uses on CUDA. It is the first of cuDNN's proposals whose
// order of additions is fixed, that does not round the inputs and that cuDNN accepts, or the choice
// of another process of the job. It is chosen once, when the convolution is first computed or its
// workspace is asked for. A build without CUDA or cuDNN has no convolutions on a GPU, and no
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

/// The version of cuDNN, 91300 for 9.13.0; 0 if it cannot be loaded or the build has none.
int64_t convolution_library_version();

/// All choices of this process for the device so far.
std::vector<ConvolutionChoice> convolution_choices(int device);

/// Makes these convolutions use these algorithms from now on. Throws, and changes nothing, if cuDNN
/// does not accept one of them.
void use_convolution_choices(int device, const std::vector<ConvolutionChoice>& choices);

}  // namespace tessera::cuda
