// Implements core/convolution_choices.h in a build without CUDA.
#include "core/convolution_choices.h"

#include "core/cuda.h"
#include "core/error.h"

namespace tessera::cuda {

int64_t convolution_library_version() { return 0; }
std::vector<ConvolutionChoice> convolution_choices(int) { return {}; }
void use_convolution_choices(int, const std::vector<ConvolutionChoice>&) {
  fail("cuda: {}", unusable());
}

}  // namespace tessera::cuda
