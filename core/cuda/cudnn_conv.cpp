#include "core/cuda/cudnn_conv.h"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <mutex>

#include "core/cuda/check.h"
#include "core/cuda/per_device.h"

// Throws for anything but success, with the text of the call.
#define TESSERA_CUDNN(call) check_cudnn((call), #call)

namespace tessera::cuda {
namespace {

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> reason = {};
  cudnnGetLastErrorString(reason.data(), reason.size());
  fail("{}: {} ({})", call, cudnnGetErrorString(status), reason.data());
}

// The library's header marks ALGO_0 of both gradients, and the weight's ALGO_3, as not
// deterministic: they add with atomics.
constexpr auto forward_algorithm = CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM;
constexpr auto input_algorithm = CUDNN_CONVOLUTION_BWD_DATA_ALGO_1;
constexpr auto weight_algorithm = CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1;

cudnnDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::f32: return CUDNN_DATA_FLOAT;
    case DType::bf16: return CUDNN_DATA_BFLOAT16;
    case DType::f16: return CUDNN_DATA_HALF;
    default: fail("cuDNN: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

int narrow(int64_t size) {
  TESSERA_CHECK(size <= std::numeric_limits<int>::max(), "cuDNN: a size of {}, at most {}", size,
                std::numeric_limits<int>::max());
  return static_cast<int>(size);
}

/// The library's descriptors of a convolution, which live as long as the process.
struct Convolution {
  cudnnTensorDescriptor_t x = nullptr, y = nullptr;
  cudnnFilterDescriptor_t filter = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
  size_t workspace_bytes = 0;
};

cudnnTensorDescriptor_t describe_images(DType dtype, int64_t images, int64_t height, int64_t width,
                                        int64_t channels) {
  cudnnTensorDescriptor_t desc = nullptr;
  TESSERA_CUDNN(cudnnCreateTensorDescriptor(&desc));
  TESSERA_CUDNN(cudnnSetTensor4dDescriptor(desc, CUDNN_TENSOR_NHWC, library_type(dtype),
                                           narrow(images), narrow(channels), narrow(height),
                                           narrow(width)));
  return desc;
}

Convolution describe(const ConvArgs& args) {
  const Conv2dSizes& s = args.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  Convolution c;
  c.x = describe_images(args.dtype, s.images, s.height, s.width, s.channels);
  c.y = describe_images(args.dtype, s.images, s.out_height, s.out_width, s.out_channels);
  TESSERA_CUDNN(cudnnCreateFilterDescriptor(&c.filter));
  TESSERA_CUDNN(cudnnSetFilter4dDescriptor(
      c.filter, library_type(args.dtype), CUDNN_TENSOR_NHWC, narrow(s.out_channels),
      narrow(s.group_channels()), narrow(s.kernel_height), narrow(s.kernel_width)));
  TESSERA_CUDNN(cudnnCreateConvolutionDescriptor(&c.convolution));
  TESSERA_CUDNN(cudnnSetConvolution2dDescriptor(
      c.convolution, narrow(padding.height), narrow(padding.width), narrow(stride.height),
      narrow(stride.width), narrow(dilation.height), narrow(dilation.width),
      CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  TESSERA_CUDNN(cudnnSetConvolutionGroupCount(c.convolution, narrow(groups)));
  // By default f32 would be rounded to TF32.
  const auto math = args.dtype == DType::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
  TESSERA_CUDNN(cudnnSetConvolutionMathType(c.convolution, math));
  return c;
}

size_t ask_workspace_bytes(cudnnHandle_t handle, Conv2dPass pass, const Convolution& c) {
  size_t bytes = 0;
  switch (pass) {
    case Conv2dPass::forward:
      TESSERA_CUDNN(cudnnGetConvolutionForwardWorkspaceSize(handle, c.x, c.filter, c.convolution,
                                                            c.y, forward_algorithm, &bytes));
      break;
    case Conv2dPass::input_gradient:
      TESSERA_CUDNN(cudnnGetConvolutionBackwardDataWorkspaceSize(
          handle, c.filter, c.y, c.convolution, c.x, input_algorithm, &bytes));
      break;
    case Conv2dPass::weight_gradient:
      TESSERA_CUDNN(cudnnGetConvolutionBackwardFilterWorkspaceSize(
          handle, c.x, c.y, c.convolution, c.filter, weight_algorithm, &bytes));
      break;
  }
  return bytes;
}

/// The library's handle for one device, and the convolutions that were asked for. Any thread may
/// ask; the handle serves one at a time.
class Library {
 public:
  Library() { TESSERA_CUDNN(cudnnCreate(&handle_)); }

  size_t workspace_bytes(const ConvArgs& args) {
    const std::lock_guard lock(mutex_);
    return find(args).workspace_bytes;
  }

  void convolve(const Context& context, const ConvArgs& args, const ConvMemory& memory) {
    const std::lock_guard lock(mutex_);
    const Convolution& c = find(args);
    Tensor workspace;  // goes back to the pool in the stream's order, after the convolution
    if (c.workspace_bytes > 0) {
      workspace = context.workspace({static_cast<int64_t>(c.workspace_bytes)}, DType::u8);
    }
    void* const room = workspace.defined() ? workspace.raw() : nullptr;
    const float alpha = 1.0f, beta = memory.accumulate ? 1.0f : 0.0f;
    TESSERA_CUDNN(cudnnSetStream(handle_, static_cast<cudaStream_t>(context.stream)));
    switch (args.pass) {
      case Conv2dPass::forward:
        TESSERA_CUDNN(cudnnConvolutionForward(
            handle_, &alpha, c.x, memory.x, c.filter, memory.filter, c.convolution,
            forward_algorithm, room, c.workspace_bytes, &beta, c.y, memory.y));
        break;
      case Conv2dPass::input_gradient:
        TESSERA_CUDNN(cudnnConvolutionBackwardData(
            handle_, &alpha, c.filter, memory.filter, c.y, memory.y, c.convolution,
            input_algorithm, room, c.workspace_bytes, &beta, c.x, memory.x));
        break;
      case Conv2dPass::weight_gradient:
        TESSERA_CUDNN(cudnnConvolutionBackwardFilter(
            handle_, &alpha, c.x, memory.x, c.y, memory.y, c.convolution, weight_algorithm, room,
            c.workspace_bytes, &beta, c.filter, memory.filter));
        break;
    }
    finish_call(context, "cuDNN: a convolution");
  }

 private:
  using Key = std::array<int64_t, sizeof(Conv2dSizes) / sizeof(int64_t) + 2>;

  const Convolution& find(const ConvArgs& args) {
    using Sizes = std::array<int64_t, sizeof(Conv2dSizes) / sizeof(int64_t)>;
    const auto sizes = std::bit_cast<Sizes>(args.sizes);
    Key key{static_cast<int64_t>(args.pass), static_cast<int64_t>(args.dtype)};
    std::copy(sizes.begin(), sizes.end(), key.begin() + 2);
    const auto found = convolutions_.find(key);
    if (found != convolutions_.end()) return found->second;
    Convolution made = describe(args);
    made.workspace_bytes = ask_workspace_bytes(handle_, args.pass, made);
    return convolutions_.emplace(key, made).first->second;
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Convolution> convolutions_;
};

Library& library_of(int device) {
  return one_per_device<Library>(device, "cuDNN", "convolution");
}

void check_alignment(const char* name, const void* data) {
  constexpr uintptr_t line = 16;
  const auto rest = reinterpret_cast<uintptr_t>(data) % line;
  TESSERA_CHECK(rest == 0,
                "conv2d: {} begins {} bytes behind a multiple of {}, where cuDNN reads {} at once; "
                "copy it to memory of its own",
                name, rest, line, line);
}

}  // namespace

void convolve(const Context& context, const ConvArgs& args, const ConvMemory& memory) {
  check_alignment("x or its gradient", memory.x);
  check_alignment("the weight or its gradient", memory.filter);
  check_alignment("y or its gradient", memory.y);
  library_of(context.device.index).convolve(context, args, memory);
}

int64_t conv_workspace_bytes(const Context& context, const ConvArgs& args) {
  return static_cast<int64_t>(library_of(context.device.index).workspace_bytes(args));
}

}  // namespace tessera::cuda
