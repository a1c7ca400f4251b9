// The calls of the emulated cuDNN, which check their arguments: see emulated/include/cudnn.h.
#include "emulated/cudnn.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "emulated/capture.h"
#include "emulated/control.h"

struct cudnnContext {
  int device;
  cudaStream_t stream = nullptr;
};

namespace {

using namespace emulated::cudnn;

thread_local std::string last_reason = "no call has failed";
std::atomic<bool> reversed{false};

struct Refusal {
  cudnnStatus_t status;
  std::string reason;
};

template <class... Args>
void demand(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (condition) return;
  throw Refusal{CUDNN_STATUS_BAD_PARAM, fmt::format(format, std::forward<Args>(args)...)};
}

/// Runs the body of a call. If the body throws a Refusal, stores its reason and returns its status.
template <class Body>
cudnnStatus_t guarded(Body&& body) {
  try {
    body();
    return CUDNN_STATUS_SUCCESS;
  } catch (const Refusal& refusal) {
    last_reason = refusal.reason;
    return refusal.status;
  }
}

template <class Struct>
cudnnStatus_t create(Struct** desc) {
  return guarded([&] {
    demand(desc != nullptr, "the address for the descriptor is null");
    *desc = new Struct;
  });
}

cudnnStatus_t destroy(auto* desc) {
  return guarded([&] {
    demand(desc != nullptr, "the descriptor is null");
    delete desc;
  });
}

template <class Struct>
const Struct& read(const char* name, const Struct* desc) {
  demand(desc != nullptr && desc->is_set, "the descriptor of {} was not set", name);
  return *desc;
}

void set(cudnnTensorStruct* desc, cudnnTensorFormat_t format, cudnnDataType_t type, int n, int c,
         int h, int w) {
  demand(desc != nullptr, "the descriptor is null");
  demand(format == CUDNN_TENSOR_NHWC, "format {} is not emulated", static_cast<int>(format));
  demand(std::min({n, c, h, w}) > 0, "sizes of {} x {} x {} x {}, expected above 0", n, c, h, w);
  desc->is_set = true;
  desc->type = type;
  desc->n = n;
  desc->c = c;
  desc->h = h;
  desc->w = w;
}

int64_t out_pixels(int64_t pixels, int64_t kernel, int64_t pad, int64_t stride, int64_t dilation) {
  const int64_t rest = pixels + 2 * pad - (dilation * (kernel - 1) + 1);
  demand(rest >= 0, "the kernel is larger than the padded image");
  return rest / stride + 1;
}

Problem problem_of(Pass pass, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
                   const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y) {
  const Problem p{pass, read("x", x), read("w", w), read("y", y), read("the convolution", conv)};
  const cudnnConvolutionStruct& c = p.convolution;
  demand(p.x.type == p.w.type && p.y.type == p.w.type, "x, w and y have different types");
  demand(p.x.c == p.w.c * c.groups && p.w.n % c.groups == 0,
         "x has {} channels and w has {} filters of {}, which do not fit {} groups", p.x.c, p.w.n,
         p.w.c, c.groups);
  const int64_t height = out_pixels(p.x.h, p.w.h, c.pad_h, c.stride_h, c.dilation_h);
  const int64_t width = out_pixels(p.x.w, p.w.w, c.pad_w, c.stride_w, c.dilation_w);
  demand(p.y.n == p.x.n && p.y.c == p.w.n && p.y.h == height && p.y.w == width,
         "y is {} x {} x {} x {}, expected {} x {} x {} x {}", p.y.n, p.y.h, p.y.w, p.y.c, p.x.n,
         height, width, p.w.n);
  return p;
}

/// Each pass has two deterministic algorithms for filters of at most 31 rows. general_algorithm
/// supports all convolutions with these filters, usual_algorithm only most of them.
constexpr int usual_algorithm = 1;
int general_algorithm(Pass pass) { return pass == Pass::forward ? 0 : 5; }

bool has_algorithm(const Problem& p, int algorithm) {
  if (p.w.h > 31) return false;
  const cudnnConvolutionStruct& c = p.convolution;
  const bool unusual = p.x.c == 3 || c.groups > 1 || c.dilation_h > 1 || c.dilation_w > 1;
  return (algorithm == usual_algorithm && !unusual) || algorithm == general_algorithm(p.pass);
}

/// Throws a Refusal if a call may not use this algorithm.
void check_algorithm(const Problem& p, int algorithm) {
  const int math = p.convolution.math;
  demand(p.x.type != CUDNN_DATA_FLOAT || math == CUDNN_FMA_MATH,
         "f32 with math type {} would be multiplied in TF32", math);
  demand(p.pass == Pass::forward || algorithm != 0,
         "the algorithm's order of addition may differ from run to run");
  if (has_algorithm(p, algorithm)) return;
  throw Refusal{CUDNN_STATUS_NOT_SUPPORTED,
                fmt::format("algorithm {} is not for this convolution", algorithm)};
}

/// Returns an invented size: 0 for 1x1 filters in forward, otherwise a size that depends on pass,
/// number of channels and algorithm.
size_t workspace_bytes(const Problem& p, int algorithm) {
  if (p.w.h * p.w.w == 1 && p.pass == Pass::forward) return 0;
  return static_cast<size_t>(4096 * (1 + static_cast<int>(p.pass)) + 16 * (p.x.c % 7) +
                             64 * algorithm);
}

cudnnStatus_t say_workspace(cudnnHandle_t handle, size_t* bytes, int algorithm, auto&& described) {
  return guarded([&] {
    demand(handle != nullptr && bytes != nullptr, "the handle or the size's address is null");
    const Problem problem = described();
    check_algorithm(problem, algorithm);
    *bytes = workspace_bytes(problem, algorithm);
  });
}

template <class Found>
cudnnStatus_t propose(cudnnHandle_t handle, int most, int* count, Found* found, auto&& described) {
  return guarded([&] {
    demand(handle != nullptr && count != nullptr && found != nullptr && most > 0,
           "there is no handle, or no room for the algorithms");
    const Problem problem = described();
    std::vector<Found> all;
    const auto add = [&](int algorithm, cudnnMathType_t math, bool deterministic) {
      const bool has = !deterministic || has_algorithm(problem, algorithm);
      all.push_back({.algo = static_cast<decltype(Found::algo)>(algorithm),
                     .status = has ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_NOT_SUPPORTED,
                     .time = -1,
                     .memory = workspace_bytes(problem, algorithm),
                     .determinism = deterministic ? CUDNN_DETERMINISTIC : CUDNN_NON_DETERMINISTIC,
                     .mathType = math,
                     .reserved = {}});
    };
    const bool is_f32 = problem.x.type == CUDNN_DATA_FLOAT;
    const cudnnMathType_t math = is_f32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
    if (problem.pass != Pass::forward) add(0, math, false);
    if (is_f32) add(usual_algorithm, CUDNN_DEFAULT_MATH, true);
    add(usual_algorithm, math, true);
    add(general_algorithm(problem.pass), math, true);
    if (reversed) std::reverse(all.begin(), all.end());
    *count = std::min(most, static_cast<int>(all.size()));
    std::copy_n(all.begin(), *count, found);
  });
}

int64_t bytes_of(const cudnnTensorStruct& desc) {
  return desc.elements() * (desc.type == CUDNN_DATA_FLOAT ? 4 : 2);
}

void check_reachable(const char* name, const void* data) {
  cudaPointerAttributes attributes{};
  demand(data != nullptr && cudaPointerGetAttributes(&attributes, data) == cudaSuccess &&
             attributes.type != cudaMemoryTypeUnregistered,
         "{} is not memory that the device can reach", name);
  demand(reinterpret_cast<uintptr_t>(data) % 16 == 0, "{} does not begin at a multiple of 16 bytes",
         name);
}

void check_addresses(const Problem& p, const Addresses& at) {
  const std::pair<const void*, const cudnnTensorStruct*> all[] = {
      {at.x, &p.x}, {at.w, &p.w}, {at.y, &p.y}};
  for (const auto& [data, desc] : all) {
    check_reachable("x, w or y", data);
    if (desc == &p.result()) continue;
    const auto begin = reinterpret_cast<uintptr_t>(data);
    const auto result = reinterpret_cast<uintptr_t>(at.result);
    demand(begin >= result + static_cast<uintptr_t>(bytes_of(p.result())) ||
               result >= begin + static_cast<uintptr_t>(bytes_of(*desc)),
           "the result overlaps an operand");
  }
}

cudnnStatus_t convolve(cudnnHandle_t handle, int algorithm, auto&& described, const Addresses& at,
                       const void* alpha, const void* beta, void* workspace, size_t bytes) {
  return guarded([&] {
    int device = -1;
    if (handle == nullptr || cudaGetDevice(&device) != cudaSuccess) {
      throw Refusal{CUDNN_STATUS_NOT_INITIALIZED, "there is no handle, or no device"};
    }
    demand(handle->device == device,
           "the handle belongs to device {}, but the current device is {}", handle->device, device);
    const Problem problem = described();
    check_algorithm(problem, algorithm);
    check_addresses(problem, at);
    const size_t needed = workspace_bytes(problem, algorithm);
    demand(bytes >= needed, "a workspace of {} bytes, but the algorithm needs {}", bytes, needed);
    if (needed > 0) check_reachable("the workspace", workspace);
    demand(alpha != nullptr && beta != nullptr, "alpha or beta is null");
    const float factors[] = {*static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    const cudaError_t error = emulated::enqueue(handle->stream, [=] {
      if (needed > 0) std::memset(workspace, 0xA5, needed);
      compute(problem, at, factors[0], factors[1]);
      return cudaSuccess;
    });
    demand(error == cudaSuccess, "{}", cudaGetErrorString(error));
  });
}

}  // namespace

namespace emulated {
void reverse_convolution_proposals(bool on) { reversed = on; }
}  // namespace emulated

size_t cudnnGetVersion() { return CUDNN_VERSION; }

const char* cudnnGetErrorString(cudnnStatus_t status) {
  switch (status) {
    case CUDNN_STATUS_SUCCESS: return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED: return "CUDNN_STATUS_NOT_INITIALIZED";
    case CUDNN_STATUS_BAD_PARAM: return "CUDNN_STATUS_BAD_PARAM";
    case CUDNN_STATUS_NOT_SUPPORTED: return "CUDNN_STATUS_NOT_SUPPORTED";
  }
  return "a status that is not emulated";
}

void cudnnGetLastErrorString(char* message, size_t size) {
  if (size > 0) message[last_reason.copy(message, size - 1)] = '\0';
}

cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  return guarded([&] {
    int device = 0;
    if (cudaGetDevice(&device) != cudaSuccess) {
      throw Refusal{CUDNN_STATUS_NOT_INITIALIZED, "there is no device"};
    }
    demand(handle != nullptr, "the address for the handle is null");
    *handle = new cudnnContext{device};
  });
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  return guarded([&] {
    demand(handle != nullptr, "there is no handle");
    handle->stream = stream;
  });
}

cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnCreateFilterDescriptor(cudnnFilterDescriptor_t* desc) { return create(desc); }
cudnnStatus_t cudnnCreateConvolutionDescriptor(cudnnConvolutionDescriptor_t* desc) {
  return create(desc);
}

cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnDestroyFilterDescriptor(cudnnFilterDescriptor_t desc) { return destroy(desc); }
cudnnStatus_t cudnnDestroyConvolutionDescriptor(cudnnConvolutionDescriptor_t desc) {
  return destroy(desc);
}

cudnnStatus_t cudnnSetTensor4dDescriptor(cudnnTensorDescriptor_t desc, cudnnTensorFormat_t format,
                                         cudnnDataType_t type, int n, int c, int h, int w) {
  return guarded([&] { set(desc, format, type, n, c, h, w); });
}

cudnnStatus_t cudnnSetFilter4dDescriptor(cudnnFilterDescriptor_t desc, cudnnDataType_t type,
                                         cudnnTensorFormat_t format, int k, int c, int h, int w) {
  return guarded([&] { set(desc, format, type, k, c, h, w); });
}

cudnnStatus_t cudnnSetConvolution2dDescriptor(cudnnConvolutionDescriptor_t desc, int pad_h,
                                              int pad_w, int u, int v, int dilation_h,
                                              int dilation_w, cudnnConvolutionMode_t mode,
                                              cudnnDataType_t compute_type) {
  return guarded([&] {
    demand(desc != nullptr, "the descriptor is null");
    demand(std::min(pad_h, pad_w) >= 0 && std::min({u, v, dilation_h, dilation_w}) > 0,
           "padding of {} x {}, strides of {} x {}, dilation of {} x {}, expected at least 0, 1, 1",
           pad_h, pad_w, u, v, dilation_h, dilation_w);
    demand(mode == CUDNN_CROSS_CORRELATION, "mode {} is not emulated", static_cast<int>(mode));
    demand(compute_type == CUDNN_DATA_FLOAT, "sums of type {} are not emulated",
           static_cast<int>(compute_type));
    *desc = {true, pad_h, pad_w, u, v, dilation_h, dilation_w};
  });
}

cudnnStatus_t cudnnSetConvolutionMathType(cudnnConvolutionDescriptor_t desc,
                                          cudnnMathType_t math) {
  return guarded([&] {
    demand(desc != nullptr, "the descriptor is null");
    desc->math = math;
  });
}

cudnnStatus_t cudnnSetConvolutionGroupCount(cudnnConvolutionDescriptor_t desc, int groups) {
  return guarded([&] {
    demand(desc != nullptr && groups > 0,
           "the descriptor is null, or has {} groups, expected at least 1", groups);
    desc->groups = groups;
  });
}

cudnnStatus_t cudnnGetConvolutionForwardAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y, const int most,
    int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
  return propose(handle, most, count, found,
                 [&] { return problem_of(Pass::forward, x, w, conv, y); });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataAlgorithm_v7(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx, const int most,
    int* count, cudnnConvolutionBwdDataAlgoPerf_t* found) {
  return propose(handle, most, count, found,
                 [&] { return problem_of(Pass::data, dx, w, conv, dy); });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterAlgorithm_v7(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw, const int most,
    int* count, cudnnConvolutionBwdFilterAlgoPerf_t* found) {
  return propose(handle, most, count, found,
                 [&] { return problem_of(Pass::filter, x, dw, conv, dy); });
}

cudnnStatus_t cudnnGetConvolutionForwardWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnFilterDescriptor_t w,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t y,
    cudnnConvolutionFwdAlgo_t algorithm, size_t* bytes) {
  return say_workspace(handle, bytes, algorithm,
                       [&] { return problem_of(Pass::forward, x, w, conv, y); });
}

cudnnStatus_t cudnnGetConvolutionBackwardDataWorkspaceSize(
    cudnnHandle_t handle, const cudnnFilterDescriptor_t w, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnTensorDescriptor_t dx,
    cudnnConvolutionBwdDataAlgo_t algorithm, size_t* bytes) {
  return say_workspace(handle, bytes, algorithm,
                       [&] { return problem_of(Pass::data, dx, w, conv, dy); });
}

cudnnStatus_t cudnnGetConvolutionBackwardFilterWorkspaceSize(
    cudnnHandle_t handle, const cudnnTensorDescriptor_t x, const cudnnTensorDescriptor_t dy,
    const cudnnConvolutionDescriptor_t conv, const cudnnFilterDescriptor_t dw,
    cudnnConvolutionBwdFilterAlgo_t algorithm, size_t* bytes) {
  return say_workspace(handle, bytes, algorithm,
                       [&] { return problem_of(Pass::filter, x, dw, conv, dy); });
}

cudnnStatus_t cudnnConvolutionForward(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
    const cudnnFilterDescriptor_t w_desc, const void* w, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t y_desc, void* y) {
  return convolve(
      handle, algorithm, [&] { return problem_of(Pass::forward, x_desc, w_desc, conv, y_desc); },
      {x, w, y, y}, alpha, beta, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardData(
    cudnnHandle_t handle, const void* alpha, const cudnnFilterDescriptor_t w_desc, const void* w,
    const cudnnTensorDescriptor_t dy_desc, const void* dy, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionBwdDataAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnTensorDescriptor_t dx_desc, void* dx) {
  return convolve(
      handle, algorithm, [&] { return problem_of(Pass::data, dx_desc, w_desc, conv, dy_desc); },
      {dx, w, dy, dx}, alpha, beta, workspace, bytes);
}

cudnnStatus_t cudnnConvolutionBackwardFilter(
    cudnnHandle_t handle, const void* alpha, const cudnnTensorDescriptor_t x_desc, const void* x,
    const cudnnTensorDescriptor_t dy_desc, const void* dy, const cudnnConvolutionDescriptor_t conv,
    cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t bytes, const void* beta,
    const cudnnFilterDescriptor_t dw_desc, void* dw) {
  return convolve(
      handle, algorithm, [&] { return problem_of(Pass::filter, x_desc, dw_desc, conv, dy_desc); },
      {x, dw, dy, dw}, alpha, beta, workspace, bytes);
}
