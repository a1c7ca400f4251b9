#include "core/cuda/cudnn_conv.h"

#include <cudnn.h>

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/convolution_choices.h"
#include "core/cuda/check.h"
#include "core/cuda/per_device.h"

// Throws an Error with the text of the call if the call fails.
#define TESSERA_CUDNN(call) check_cudnn((call), #call)

namespace tessera::cuda {
namespace {

void check_cudnn(cudnnStatus_t status, const char* call) {
  if (status == CUDNN_STATUS_SUCCESS) return;
  std::array<char, 1024> reason = {};
  cudnnGetLastErrorString(reason.data(), reason.size());
  fail("{}: {} ({})", call, cudnnGetErrorString(status), reason.data());
}

// The most bytes of workspace that an algorithm may need. FFT algorithms would need gigabytes, and
// other algorithms are as fast.
constexpr size_t workspace_limit = size_t{512} << 20;

/// An algorithm for one pass (Conv2dPass). `number` is its value in cuDNN's enumeration for that
/// pass.
struct Algorithm {
  int number = 0;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  size_t workspace_bytes = 0;
};
struct Proposal : Algorithm {
  cudnnStatus_t status = CUDNN_STATUS_SUCCESS;
  bool deterministic = false;
};

cudnnDataType_t library_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDNN_DATA_FLOAT;
    case DType::bf16:
      return CUDNN_DATA_BFLOAT16;
    case DType::f16:
      return CUDNN_DATA_HALF;
    default:
      fail("cuDNN: dtype {} is not a floating-point type", dtype_name(dtype));
  }
}

int narrow(int64_t size) {
  TESSERA_CHECK(size <= std::numeric_limits<int>::max(), "cuDNN: a size of {}, expected at most {}",
                size, std::numeric_limits<int>::max());
  return static_cast<int>(size);
}

struct Destroy {
  void operator()(cudnnTensorDescriptor_t desc) const { (void)cudnnDestroyTensorDescriptor(desc); }
  void operator()(cudnnFilterDescriptor_t desc) const { (void)cudnnDestroyFilterDescriptor(desc); }
  void operator()(cudnnConvolutionDescriptor_t desc) const {
    (void)cudnnDestroyConvolutionDescriptor(desc);
  }
};
/// Owns a cuDNN descriptor, which is a pointer, and destroys it.
template <class Desc>
using Owned = std::unique_ptr<std::remove_pointer_t<Desc>, Destroy>;

/// cuDNN's descriptors of a convolution, and the algorithm for one of its passes.
struct Convolution {
  Owned<cudnnTensorDescriptor_t> x, y;
  Owned<cudnnFilterDescriptor_t> filter;
  Owned<cudnnConvolutionDescriptor_t> convolution;
  Algorithm algorithm;
};

Owned<cudnnTensorDescriptor_t> describe_images(DType dtype, int64_t images, int64_t height,
                                               int64_t width, int64_t channels) {
  cudnnTensorDescriptor_t desc = nullptr;
  TESSERA_CUDNN(cudnnCreateTensorDescriptor(&desc));
  Owned<cudnnTensorDescriptor_t> owned(desc);
  TESSERA_CUDNN(cudnnSetTensor4dDescriptor(desc, CUDNN_TENSOR_NHWC, library_type(dtype),
                                           narrow(images), narrow(channels), narrow(height),
                                           narrow(width)));
  return owned;
}

Owned<cudnnFilterDescriptor_t> describe_filter(const ConvArgs& args) {
  const Conv2dSizes& s = args.sizes;
  cudnnFilterDescriptor_t desc = nullptr;
  TESSERA_CUDNN(cudnnCreateFilterDescriptor(&desc));
  Owned<cudnnFilterDescriptor_t> owned(desc);
  TESSERA_CUDNN(cudnnSetFilter4dDescriptor(desc, library_type(args.dtype), CUDNN_TENSOR_NHWC,
                                           narrow(s.out_channels), narrow(s.group_channels()),
                                           narrow(s.kernel_height), narrow(s.kernel_width)));
  return owned;
}

Convolution describe(const ConvArgs& args) {
  const Conv2dSizes& s = args.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  Convolution c;
  c.x = describe_images(args.dtype, s.images, s.height, s.width, s.channels);
  c.y = describe_images(args.dtype, s.images, s.out_height, s.out_width, s.out_channels);
  c.filter = describe_filter(args);
  cudnnConvolutionDescriptor_t desc = nullptr;
  TESSERA_CUDNN(cudnnCreateConvolutionDescriptor(&desc));
  c.convolution.reset(desc);
  TESSERA_CUDNN(cudnnSetConvolution2dDescriptor(desc, narrow(padding.height), narrow(padding.width),
                                                narrow(stride.height), narrow(stride.width),
                                                narrow(dilation.height), narrow(dilation.width),
                                                CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT));
  TESSERA_CUDNN(cudnnSetConvolutionGroupCount(desc, narrow(groups)));
  // By default, cuDNN would round f32 operands to TF32.
  const auto math = args.dtype == DType::f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
  TESSERA_CUDNN(cudnnSetConvolutionMathType(desc, math));
  return c;
}

/// Returns cuDNN's proposals for a pass. `ask` calls cuDNN, which writes proposals of type Found.
template <class Found, class Ask>
std::vector<Proposal> proposals_of(Ask&& ask) {
  constexpr int most = 16;
  std::array<Found, most> found{};
  int count = 0;
  TESSERA_CUDNN(ask(most, &count, found.data()));
  std::vector<Proposal> result;
  for (const Found& one : std::span(found).first(static_cast<size_t>(count))) {
    result.push_back({{static_cast<int>(one.algo), one.mathType},
                      one.status,
                      one.determinism == CUDNN_DETERMINISTIC});
  }
  return result;
}

/// Returns cuDNN's proposals for a pass. The first is the fastest by cuDNN's own estimate.
std::vector<Proposal> proposals(cudnnHandle_t handle, Conv2dPass pass, const Convolution& c) {
  switch (pass) {
    case Conv2dPass::forward:
      return proposals_of<cudnnConvolutionFwdAlgoPerf_t>([&](auto... to) {
        return cudnnGetConvolutionForwardAlgorithm_v7(handle, c.x.get(), c.filter.get(),
                                                      c.convolution.get(), c.y.get(), to...);
      });
    case Conv2dPass::input_gradient:
      return proposals_of<cudnnConvolutionBwdDataAlgoPerf_t>([&](auto... to) {
        return cudnnGetConvolutionBackwardDataAlgorithm_v7(handle, c.filter.get(), c.y.get(),
                                                           c.convolution.get(), c.x.get(), to...);
      });
    case Conv2dPass::weight_gradient:
      return proposals_of<cudnnConvolutionBwdFilterAlgoPerf_t>([&](auto... to) {
        return cudnnGetConvolutionBackwardFilterAlgorithm_v7(
            handle, c.x.get(), c.y.get(), c.convolution.get(), c.filter.get(), to...);
      });
  }
  return {};
}

/// Sets `bytes` to the size of the algorithm's workspace. Returns an error if the algorithm cannot
/// compute the convolution.
cudnnStatus_t ask_workspace(cudnnHandle_t handle, Conv2dPass pass, const Convolution& c,
                            int algorithm, size_t& bytes) {
  switch (pass) {
    case Conv2dPass::forward:
      return cudnnGetConvolutionForwardWorkspaceSize(
          handle, c.x.get(), c.filter.get(), c.convolution.get(), c.y.get(),
          static_cast<cudnnConvolutionFwdAlgo_t>(algorithm), &bytes);
    case Conv2dPass::input_gradient:
      return cudnnGetConvolutionBackwardDataWorkspaceSize(
          handle, c.filter.get(), c.y.get(), c.convolution.get(), c.x.get(),
          static_cast<cudnnConvolutionBwdDataAlgo_t>(algorithm), &bytes);
    case Conv2dPass::weight_gradient:
      return cudnnGetConvolutionBackwardFilterWorkspaceSize(
          handle, c.x.get(), c.y.get(), c.convolution.get(), c.filter.get(),
          static_cast<cudnnConvolutionBwdFilterAlgo_t>(algorithm), &bytes);
  }
  return CUDNN_STATUS_BAD_PARAM;
}

/// Sets the convolution's algorithm, with a math type that does not round operands. Returns an
/// empty text on success. Otherwise returns the reason why the algorithm cannot be used, and
/// changes nothing but the descriptor's math type.
std::string try_algorithm(cudnnHandle_t handle, const ConvArgs& args, Convolution& c,
                          Algorithm algorithm) {
  // Math types other than FMA may round f32 operands to TF32. Operands in bf16 and f16 are
  // multiplied unrounded, unless the math type allows conversions.
  if (args.dtype == DType::f32) {
    algorithm.math = CUDNN_FMA_MATH;
  } else if (algorithm.math == CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION) {
    algorithm.math = CUDNN_TENSOR_OP_MATH;
  }
  TESSERA_CUDNN(cudnnSetConvolutionMathType(c.convolution.get(), algorithm.math));
  const cudnnStatus_t status =
      ask_workspace(handle, args.pass, c, algorithm.number, algorithm.workspace_bytes);
  if (status != CUDNN_STATUS_SUCCESS) return cudnnGetErrorString(status);
  if (algorithm.workspace_bytes > workspace_limit) {
    return fmt::format("takes {} bytes of workspace", algorithm.workspace_bytes);
  }
  c.algorithm = algorithm;
  return "";
}

std::string describe_text(const ConvArgs& args) {
  constexpr std::array<const char*, 3> passes = {"forward", "gradient of the input",
                                                 "gradient of the weight"};
  const Conv2dSizes& s = args.sizes;
  const auto& [stride, padding, dilation, groups] = s.options;
  return fmt::format(
      "the {} of a convolution in {} of images [{}, {}, {}, {}] with filters [{}, {}, {}, {}], "
      "stride {} x {}, padding {} x {}, dilation {} x {}, {} groups",
      passes[static_cast<size_t>(args.pass)], dtype_name(args.dtype), s.images, s.height, s.width,
      s.channels, s.out_channels, s.group_channels(), s.kernel_height, s.kernel_width,
      stride.height, stride.width, padding.height, padding.width, dilation.height, dilation.width,
      groups);
}

/// Chooses the first usable proposal of cuDNN. If no proposal is usable, throws with all reasons.
void choose_algorithm(cudnnHandle_t handle, const ConvArgs& args, Convolution& c) {
  std::string refused;
  for (const Proposal& proposal : proposals(handle, args.pass, c)) {
    std::string why;
    if (!proposal.deterministic) {
      why = "is not deterministic";
    } else if (proposal.status != CUDNN_STATUS_SUCCESS) {
      why = cudnnGetErrorString(proposal.status);
    } else {
      why = try_algorithm(handle, args, c, proposal);
    }
    if (why.empty()) return;
    refused += fmt::format("{}{} {}", refused.empty() ? "" : ", ", proposal.number, why);
  }
  fail(
      "cuDNN: no deterministic algorithm for {} that adds in f32 and needs at most {} MiB of "
      "workspace; refused proposals: {}",
      describe_text(args), workspace_limit >> 20, refused.empty() ? "none" : refused);
}

/// cuDNN's handle for one device, and all convolutions for which an algorithm was chosen or given
/// (use()). Safe to use from any thread: a mutex lets one thread at a time use the handle.
class Library {
 public:
  Library() { TESSERA_CUDNN(cudnnCreate(&handle_)); }

  size_t workspace_bytes(const ConvArgs& args) {
    const std::lock_guard lock(mutex_);
    return find(args).algorithm.workspace_bytes;
  }

  void convolve(const Context& context, const ConvArgs& args, const ConvMemory& memory) {
    const std::lock_guard lock(mutex_);
    const Convolution& c = find(args);
    const auto& [number, math, bytes] = c.algorithm;
    Tensor workspace;  // freed in the stream's order, after the convolution
    if (bytes > 0) workspace = context.workspace({static_cast<int64_t>(bytes)}, DType::u8);
    void* const scratch = workspace.defined() ? workspace.raw() : nullptr;
    const float alpha = 1.0f, beta = memory.accumulate ? 1.0f : 0.0f;
    TESSERA_CUDNN(cudnnSetStream(handle_, static_cast<cudaStream_t>(context.stream)));
    switch (args.pass) {
      case Conv2dPass::forward:
        TESSERA_CUDNN(cudnnConvolutionForward(handle_, &alpha, c.x.get(), memory.x, c.filter.get(),
                                              memory.filter, c.convolution.get(),
                                              static_cast<cudnnConvolutionFwdAlgo_t>(number),
                                              scratch, bytes, &beta, c.y.get(), memory.y));
        break;
      case Conv2dPass::input_gradient:
        TESSERA_CUDNN(cudnnConvolutionBackwardData(
            handle_, &alpha, c.filter.get(), memory.filter, c.y.get(), memory.y,
            c.convolution.get(), static_cast<cudnnConvolutionBwdDataAlgo_t>(number), scratch, bytes,
            &beta, c.x.get(), memory.x));
        break;
      case Conv2dPass::weight_gradient:
        TESSERA_CUDNN(cudnnConvolutionBackwardFilter(
            handle_, &alpha, c.x.get(), memory.x, c.y.get(), memory.y, c.convolution.get(),
            static_cast<cudnnConvolutionBwdFilterAlgo_t>(number), scratch, bytes, &beta,
            c.filter.get(), memory.filter));
        break;
    }
    finish_call(context, "cuDNN: a convolution");
  }

  std::vector<ConvolutionChoice> choices() {
    const std::lock_guard lock(mutex_);
    std::vector<ConvolutionChoice> result;
    for (const auto& [key, c] : convolutions_) {
      const ConvArgs args = args_of(key);
      result.push_back({.sizes = args.sizes,
                        .algorithm = c.algorithm.number,
                        .math = c.algorithm.math,
                        .dtype = args.dtype,
                        .pass = args.pass});
    }
    return result;
  }

  void use(const std::vector<ConvolutionChoice>& choices) {
    const std::lock_guard lock(mutex_);
    std::map<Key, Convolution> made;
    for (const auto& [sizes, algorithm, math, dtype, pass] : choices) {
      const ConvArgs args{pass, sizes, dtype};
      Convolution c = describe(args);
      const std::string why =
          try_algorithm(handle_, args, c, {algorithm, static_cast<cudnnMathType_t>(math)});
      TESSERA_CHECK(why.empty(), "cuDNN: algorithm {} for {}: {}", algorithm, describe_text(args),
                    why);
      made.emplace(key_of(args), std::move(c));
    }
    for (auto& [key, c] : made) convolutions_[key] = std::move(c);
  }

 private:
  using Sizes = std::array<int64_t, sizeof(Conv2dSizes) / sizeof(int64_t)>;
  using Key = std::array<int64_t, std::tuple_size_v<Sizes> + 2>;

  static ConvArgs args_of(const Key& key) {
    Sizes sizes;
    std::copy(key.begin() + 2, key.end(), sizes.begin());
    return {static_cast<Conv2dPass>(key[0]), std::bit_cast<Conv2dSizes>(sizes),
            static_cast<DType>(key[1])};
  }
  static Key key_of(const ConvArgs& args) {
    const auto sizes = std::bit_cast<Sizes>(args.sizes);
    Key key{static_cast<int64_t>(args.pass), static_cast<int64_t>(args.dtype)};
    std::copy(sizes.begin(), sizes.end(), key.begin() + 2);
    return key;
  }

  const Convolution& find(const ConvArgs& args) {
    const Key key = key_of(args);
    const auto found = convolutions_.find(key);
    if (found != convolutions_.end()) return found->second;
    Convolution made = describe(args);
    choose_algorithm(handle_, args, made);
    return convolutions_.emplace(key, std::move(made)).first->second;
  }

  cudnnHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<Key, Convolution> convolutions_;
};

Library& library_of(int device) { return one_per_device<Library>(device, "cuDNN", "convolution"); }

void check_alignment(const char* name, const void* data) {
  constexpr uintptr_t line = 16;
  const auto rest = reinterpret_cast<uintptr_t>(data) % line;
  TESSERA_CHECK(rest == 0,
                "conv2d: {} begins {} bytes after a multiple of {}, but cuDNN reads {} bytes at a "
                "time",
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

int64_t convolution_library_version() {
  try {
    return static_cast<int64_t>(cudnnGetVersion());
  } catch (const Error&) {
    return 0;  // cuDNN cannot be loaded
  }
}

std::vector<ConvolutionChoice> convolution_choices(int device) {
  return library_of(device).choices();
}

void use_convolution_choices(int device, const std::vector<ConvolutionChoice>& choices) {
  library_of(device).use(choices);
}

}  // namespace tessera::cuda
