// Implements core/cuda/cudnn_conv.h and core/convolution_choices.h in a CUDA build that has not
// found cuDNN's headers.
#include "core/cuda/cudnn_conv.h"

#include <cuda_runtime.h>

#include "core/convolution_choices.h"
#include "core/error.h"

namespace tessera::cuda {
namespace {

[[noreturn]] void refuse() {
  fail("conv2d: this build has no cuDNN, which convolutions on a GPU need: install NVIDIA's "
       "package libcudnn9-dev-cuda-{}, and build again",
       CUDART_VERSION / 1000);
}

}  // namespace

void convolve(const Context&, const ConvArgs&, const ConvMemory&) { refuse(); }
int64_t conv_workspace_bytes(const Context&, const ConvArgs&) { refuse(); }

int64_t convolution_library_version() { return 0; }
std::vector<ConvolutionChoice> convolution_choices(int) { return {}; }
void use_convolution_choices(int, const std::vector<ConvolutionChoice>&) { refuse(); }

}  // namespace tessera::cuda
