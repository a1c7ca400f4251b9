// Which cuDNN algorithm a convolution uses on CUDA. The choice is made once, when the convolution
// is first computed or its workspace is first asked for. It is the first of cuDNN's proposals that
//  - adds in a fixed order,
//  - cuDNN accepts with a math type that does not round the inputs, and
//  - takes at most 512 MiB of workspace.
// A process may also take over the choices of another process of the job, so that both compute the
// same bits. A build without CUDA or cuDNN has no convolutions on a GPU, and no choices.
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

/// Returns all choices for the device that this process has made or taken over so far.
std::vector<ConvolutionChoice> convolution_choices(int device);

/// Makes each convolution in `choices` use the algorithm given there from now on. Throws, and
/// changes nothing, if cuDNN refuses one of them or its workspace is too large. Throws in a build
/// without cuDNN.
void use_convolution_choices(int device, const std::vector<ConvolutionChoice>& choices);

}  // namespace tessera::cuda
