// Wrappers that load cuDNN at the first call. Without cuDNN, a program can run everything but
// convolutions on a GPU. A build with emulated CUDA has its own implementation of cuDNN in place of
// this file.
#include <cudnn.h>

#include "core/cuda/delayed/library.h"

namespace {

tessera::cuda::DelayedLibrary& cudnn() {
  static tessera::cuda::DelayedLibrary library(
      "cuDNN", fmt::format("libcudnn.so.{}", CUDNN_MAJOR),
      fmt::format("; convolutions on a GPU need libcudnn.so.{0}: install NVIDIA's package "
                  "libcudnn{0}-cuda-{1}, or name its folder in LD_LIBRARY_PATH",
                  CUDNN_MAJOR, CUDART_VERSION / 1000));
  return library;
}

}  // namespace

extern "C" {

size_t cudnnGetVersion() TESSERA_DELAYED(cudnn, cudnnGetVersion, ())

const char* cudnnGetErrorString(cudnnStatus_t status)
TESSERA_DELAYED(cudnn, cudnnGetErrorString, (status))

void cudnnGetLastErrorString(char* message, size_t size)
TESSERA_DELAYED(cudnn, cudnnGetLastErrorString, (message, size))

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) TESSERA_DELAYED(cudnn, cudnnCreate, (handle))

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
TESSERA_DELAYED(cudnn, cudnnSetStream, (handle, stream))

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* desc)
TESSERA_DELAYED(cudnn, cudnnCreateTensorDescriptor, (desc))

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc)
TESSERA_DELAYED(cudnn, cudnnDestroyTensorDescriptor, (desc))

cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc)
TESSERA_DELAYED(cudnn, cudnnDestroyFilterDescriptor, (desc))

cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc)
TESSERA_DELAYED(cudnn, cudnnDestroyConvolutionDescriptor, (desc))

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w)
TESSERA_DELAYED(cudnn, cudnnSetTensor4dDescriptor, (desc, format, type, n, c, h, w))

cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* desc)
TESSERA_DELAYED(cudnn, cudnnCreateFilterDescriptor, (desc))

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w)
TESSERA_DELAYED(cudnn, cudnnSetFilter4dDescriptor, (desc, type, format, k, c, h, w))

cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* desc)
TESSERA_DELAYED(cudnn, cudnnCreateConvolutionDescriptor, (desc))

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute_type)
TESSERA_DELAYED(cudnn, cudnnSetConvolution2dDescriptor,
                (desc, pad_h, pad_w, u, v, dilation_h, dilation_w, mode, compute_type))

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc, cudnnMathType_t math)
TESSERA_DELAYED(cudnn, cudnnSetConvolutionMathType, (desc, math))

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t desc, int groups)
TESSERA_DELAYED(cudnn, cudnnSetConvolutionGroupCount, (desc, groups))

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y, const int most,
    int* count, cudnnConvolutionFwdAlgoPerf_t* found)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionForwardAlgorithm_v7,
                (handle, x, w, conv, y, most, count, found))

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx, const int most,
    int* count, cudnnConvolutionBwdDataAlgoPerf_t* found)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionBackwardDataAlgorithm_v7,
                (handle, w, dy, conv, dx, most, count, found))

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, const int most,
    int* count, cudnnConvolutionBwdFilterAlgoPerf_t* found)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionBackwardFilterAlgorithm_v7,
                (handle, x, dy, conv, dw, most, count, found))

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionForwardWorkspaceSize,
                (handle, x, w, conv, y, algorithm, bytes))

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionBackwardDataWorkspaceSize,
                (handle, w, dy, conv, dx, algorithm, bytes))

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes)
TESSERA_DELAYED(cudnn, cudnnGetConvolutionBackwardFilterWorkspaceSize,
                (handle, x, dy, conv, dw, algorithm, bytes))

cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
    const cudnnFilterDescriptor_t w_desc, const void* w, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t y_desc, void* y)
TESSERA_DELAYED(cudnn, cudnnConvolutionForward,
                (handle, alpha, x_desc, x, w_desc, w, conv, algorithm,
                                          workspace, bytes, beta, y_desc, y))

cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t w_desc, const void* w,
    const cudnnTensorDescriptor_t dy_desc, const void* dy, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t dx_desc, void* dx)
TESSERA_DELAYED(cudnn, cudnnConvolutionBackwardData, (handle, alpha, w_desc, w, dy_desc, dy, conv,
                                               algorithm, workspace, bytes, beta, dx_desc, dx))

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
    const cudnnTensorDescriptor_t dy_desc, const void* dy, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnFilterDescriptor_t dw_desc, void* dw)
TESSERA_DELAYED(cudnn, cudnnConvolutionBackwardFilter, (handle, alpha, x_desc, x, dy_desc, dy, conv,
                                                 algorithm, workspace, bytes, beta, dw_desc, dw))

}  // extern "C"
