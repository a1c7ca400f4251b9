// The kernel launchers of conv2d, the sizes of a convolution, and its workspace in bytes, which
// models/image uses to plan memory. Images are (N, H, W, C): N images of H rows and W columns of
// pixels, C channels.
#pragma once

#include <cstdint>
#include <optional>

#include "core/dispatch.h"
#include "core/ops/options.h"

namespace tessera {

// On CUDA, cuDNN can only access tensors that begin at multiples of 16 bytes. Other operands are
// first copied into the workspace, and other results are computed there and then copied.

/// y (N, H', W', O) = x (N, H, W, C) convolved with weight (O, C / groups, kh, kw) + bias (O); bias
/// may be undefined.
TESSERA_KERNEL(conv2d_forward, const Tensor& y, const Tensor& x, const Tensor& weight,
               const Tensor& bias, const Conv2dOptions& options)
/// Computes dx, dweight and dbias, any of which may be undefined. x may be undefined if dweight is
/// undefined, and weight may be undefined if dx is undefined.
TESSERA_KERNEL(conv2d_backward, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
               const Tensor& dy, const Tensor& x, const Tensor& weight,
               const Conv2dOptions& options)

/// The sizes and options of a convolution, but not its dtype or whether it has a bias.
struct Conv2dSizes {
  int64_t images = 0, height = 0, width = 0, channels = 0;  // of x
  int64_t out_height = 0, out_width = 0, out_channels = 0;  // of y
  int64_t kernel_height = 0, kernel_width = 0;
  Conv2dOptions options;

  bool operator==(const Conv2dSizes&) const = default;
  int64_t group_channels() const { return channels / options.groups; }
  int64_t x_elements() const { return images * height * width * channels; }
  int64_t y_elements() const { return images * out_height * out_width * out_channels; }
  int64_t weight_elements() const {
    return out_channels * group_channels() * kernel_height * kernel_width;
  }
};

/// Returns the sizes of a convolution of x (N, H, W, C) with weight (O, C / groups, kh, kw). Throws
/// if x, weight and the options do not fit each other.
Conv2dSizes conv2d_sizes(const Shape& x, const Shape& weight, const Conv2dOptions& options);

/// Selects the result that one pass of a convolution computes: y, dx or dweight.
enum class Conv2dPass : uint8_t { forward, input_gradient, weight_gradient };

/// The tensors of conv2d_backward. The comment above conv2d_backward says which may be undefined.
struct Conv2dDestinations {
  const Tensor &dx, &dweight, &dbias;
};
struct Conv2dSources {
  const Tensor &dy, &x, &weight;
};
/// The first part of conv2d_backward on the CPU and on CUDA. Computes dbias as the column sums of
/// dy. If dy is empty, fills dweight with zeros. Skips dbias or dweight if it is undefined. Returns
/// the sizes of the convolution, or nullopt if neither dx nor dweight is left to compute.
std::optional<Conv2dSizes> begin_conv2d_backward(const Context& context,
                                                 const Conv2dDestinations& to,
                                                 const Conv2dSources& from,
                                                 const Conv2dOptions& options);

/// The gradients that a call of conv2d_backward must compute.
struct Conv2dGradients {
  bool x = true;
  bool weight = true;
  bool bias = false;
};

// Return the exact peak of the workspace of conv2d_forward and conv2d_backward, in bytes, for
// tensors of the given dtype. On the CPU the result depends on thread_count(). On CUDA the device
// must be present, because cuDNN is queried. The copies of tensors that do not begin at a multiple
// of 16 bytes are not counted.
#define TESSERA_CONV2D_WORKSPACE                                                                  \
  int64_t conv2d_forward_workspace(const Context& context, const Conv2dSizes& sizes, DType dtype, \
                                   bool has_bias);                                                \
  int64_t conv2d_backward_workspace(const Context& context, const Conv2dSizes& sizes,             \
                                    DType dtype, const Conv2dGradients& wanted);
namespace cpu {
TESSERA_CONV2D_WORKSPACE
}
namespace cuda {
TESSERA_CONV2D_WORKSPACE
}
#undef TESSERA_CONV2D_WORKSPACE

namespace kernels {
inline int64_t conv2d_forward_workspace(const Context& context, const Conv2dSizes& sizes,
                                        DType dtype, bool has_bias) {
  return TESSERA_DISPATCH(conv2d_forward_workspace, context, sizes, dtype, has_bias);
}
inline int64_t conv2d_backward_workspace(const Context& context, const Conv2dSizes& sizes,
                                         DType dtype, const Conv2dGradients& wanted) {
  return TESSERA_DISPATCH(conv2d_backward_workspace, context, sizes, dtype, wanted);
}
}  // namespace kernels

}  // namespace tessera
