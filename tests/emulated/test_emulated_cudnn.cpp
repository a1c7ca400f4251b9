// Tests that the emulated cuDNN refuses a result that shares memory with an operand, and a kernel
// that is larger than the padded image.
#include <cudnn.h>

#include <string>

#include "tests/support/catch.h"

namespace {

constexpr int channels = 4;
constexpr int pixels = 2;  // in each row and in each column

struct Memory {
  static constexpr size_t bytes = size_t{1} << 16;  // enough for every tensor and workspace below
  void* data = nullptr;

  Memory() { REQUIRE(cudaMalloc(&data, bytes) == cudaSuccess); }
  ~Memory() { (void)cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
};

// A convolution with a kernel of 1x1, so x and y have equal sizes.
struct Convolution {
  static inline cudnnHandle_t handle = nullptr;  // never destroyed: cudnnDestroy is not emulated
  cudnnTensorDescriptor_t image = nullptr;  // describes x and y
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t how = nullptr;
  Memory workspace;

  Convolution() {
    if (!handle) REQUIRE(cudnnCreate(&handle) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateTensorDescriptor(&image) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateFilterDescriptor(&filter) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnCreateConvolutionDescriptor(&how) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetTensor4dDescriptor(image, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, channels,
                                       pixels, pixels) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetFilter4dDescriptor(filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC, channels,
                                       channels, 1, 1) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetConvolution2dDescriptor(how, 0, 0, 1, 1, 1, 1, CUDNN_CROSS_CORRELATION,
                                            CUDNN_DATA_FLOAT) == CUDNN_STATUS_SUCCESS);
    REQUIRE(cudnnSetConvolutionMathType(how, CUDNN_FMA_MATH) == CUDNN_STATUS_SUCCESS);
  }
  ~Convolution() {
    (void)cudnnDestroyTensorDescriptor(image);
    (void)cudnnDestroyFilterDescriptor(filter);
    (void)cudnnDestroyConvolutionDescriptor(how);
  }
  Convolution(const Convolution&) = delete;
  Convolution& operator=(const Convolution&) = delete;

  cudnnStatus_t forward(const Memory& x, const Memory& w, const Memory& y) const {
    return cudnnConvolutionForward(handle, &one, image, x.data, filter, w.data, how,
                                   CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                   workspace.data, Memory::bytes, &zero, image, y.data);
  }
  cudnnStatus_t backward_data(const Memory& w, const Memory& dy, const Memory& dx) const {
    return cudnnConvolutionBackwardData(handle, &one, filter, w.data, image, dy.data, how,
                                        CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, workspace.data,
                                        Memory::bytes, &zero, image, dx.data);
  }
  cudnnStatus_t backward_filter(const Memory& x, const Memory& dy, const Memory& dw) const {
    return cudnnConvolutionBackwardFilter(handle, &one, image, x.data, image, dy.data, how,
                                          CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, workspace.data,
                                          Memory::bytes, &zero, filter, dw.data);
  }

  static constexpr float one = 1;
  static constexpr float zero = 0;
};

TEST_CASE("a convolution's result may not begin where an operand begins") {
  const Convolution convolution;
  const Memory a;
  const Memory b;
  const Memory c;
  CHECK(convolution.forward(a, b, c) == CUDNN_STATUS_SUCCESS);
  CHECK(convolution.backward_data(a, b, c) == CUDNN_STATUS_SUCCESS);
  CHECK(convolution.backward_filter(a, b, c) == CUDNN_STATUS_SUCCESS);
  CHECK(convolution.backward_filter(a, a, c) == CUDNN_STATUS_SUCCESS);  // equal operands
  const cudnnStatus_t refused[] = {
      convolution.forward(a, b, a),         convolution.forward(a, b, b),
      convolution.backward_data(a, b, a),   convolution.backward_data(a, b, b),
      convolution.backward_filter(a, b, a), convolution.backward_filter(a, b, b),
  };
  for (const cudnnStatus_t status : refused) CHECK(status == CUDNN_STATUS_BAD_PARAM);
  char message[100];
  cudnnGetLastErrorString(message, sizeof(message));
  CHECK(message == std::string("the result overlaps an operand"));
}

TEST_CASE("a kernel that is larger than the padded image is refused") {
  const Convolution convolution;
  const Memory x, w, y;
  REQUIRE(cudnnSetFilter4dDescriptor(convolution.filter, CUDNN_DATA_FLOAT, CUDNN_TENSOR_NHWC,
                                     channels, channels, pixels + 1,
                                     pixels + 1) == CUDNN_STATUS_SUCCESS);
  // A row of the result has floor((2 - 3) / stride) + 1 = 0 pixels. With a stride of 2, a division
  // that rounds towards 0 would give one pixel.
  REQUIRE(cudnnSetConvolution2dDescriptor(convolution.how, 0, 0, 2, 2, 1, 1,
                                          CUDNN_CROSS_CORRELATION,
                                          CUDNN_DATA_FLOAT) == CUDNN_STATUS_SUCCESS);
  cudnnTensorDescriptor_t pixel = nullptr;
  REQUIRE(cudnnCreateTensorDescriptor(&pixel) == CUDNN_STATUS_SUCCESS);
  REQUIRE(cudnnSetTensor4dDescriptor(pixel, CUDNN_TENSOR_NHWC, CUDNN_DATA_FLOAT, 1, channels, 1,
                                     1) == CUDNN_STATUS_SUCCESS);
  CHECK(cudnnConvolutionForward(Convolution::handle, &Convolution::one, convolution.image, x.data,
                                convolution.filter, w.data, convolution.how,
                                CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM,
                                convolution.workspace.data, Memory::bytes, &Convolution::zero,
                                pixel, y.data) == CUDNN_STATUS_BAD_PARAM);
  char message[200];
  cudnnGetLastErrorString(message, sizeof(message));
  CHECK(message == std::string("the kernel is larger than the padded image"));
  (void)cudnnDestroyTensorDescriptor(pixel);
}

}  // namespace
