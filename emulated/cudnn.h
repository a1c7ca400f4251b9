// Describes convolutions. emulated/cudnn.cpp checks a convolution and passes it, with the addresses
// of its tensors, to the arithmetic in emulated/cudnn_convolution.cpp.
#pragma once

#include <cstdint>

#include <cudnn.h>

// The structs that descriptors point to.

struct cudnnTensorStruct {
  bool is_set = false;
  cudnnDataType_t type = CUDNN_DATA_FLOAT;
  int64_t n = 0, c = 0, h = 0, w = 0;  // the layout in memory is (n, h, w, c)

  int64_t elements() const { return n * c * h * w; }
};
struct cudnnFilterStruct : cudnnTensorStruct {};  // n is the number of filters

struct cudnnConvolutionStruct {
  bool is_set = false;
  int64_t pad_h = 0, pad_w = 0, stride_h = 1, stride_w = 1, dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
};

namespace emulated::cudnn {

enum class Pass { forward, data, filter };

struct Problem {
  Pass pass;
  cudnnTensorStruct x, w, y;
  cudnnConvolutionStruct convolution;

  const cudnnTensorStruct& result() const {
    return pass == Pass::forward ? y : pass == Pass::data ? x : w;
  }
};

struct Addresses {
  const void *x, *w, *y;  // one of these is also `result`
  void* result;
};

/// Computes the output of problem.pass: y, the gradient of x or the gradient of w. Then computes
/// result = alpha * output + beta * result. The old result is not read if beta is 0.
void compute(const Problem& problem, const Addresses& at, float alpha, float beta);

}  // namespace emulated::cudnn
