// conv2d: y (N, H', W', O) = x (N, H, W, C) convolved with weight (O, C / groups, kh, kw) + bias:
//   y[n, i, j, o] = bias[o] + sum over c, u, v of
//     x[n, i stride + u dilation - padding, j stride + v dilation - padding, c] weight[o, c, u, v]
// where x is zero outside of the image, and c runs over the C / groups channels of o's group. In x,
// c stands for the channel's index among all C channels; in weight, for its index in the group.
//
// The gradient of a pixel of x is a sum over all (i, j, o) that the pixel contributes to. The
// gradient of the weight is a sum over images and pixels. Only the gradients that autograd wants
// are computed: a network's first convolution needs no gradient of x.
#include "core/ops/conv2d.h"

#include <algorithm>

#include "core/autograd.h"
#include "core/cpu/gemm.h"
#include "core/cpu/onednn_conv.h"
#include "core/cpu/winograd.h"
#include "core/image_ops.h"
#include "core/ops/convert.h"
#include "core/ops/fill.h"
#include "core/ops/linear.h"
#include "core/trace.h"

namespace tessera {

namespace {
void check_options(const Conv2dOptions& options) {
  const auto& [stride, padding, dilation, groups] = options;
  // Options above INT32_MAX could overflow in out_pixels.
  const auto check = [](const char* name, const Size2& size, int64_t minimum) {
    const auto [least, most] = std::minmax(size.height, size.width);
    TESSERA_CHECK(least >= minimum && most <= INT32_MAX, "conv2d: {} is {} x {}, expected {} to {}",
                  name, size.height, size.width, minimum, INT32_MAX);
  };
  check("stride", stride, 1);
  check("padding", padding, 0);
  check("dilation", dilation, 1);
  TESSERA_CHECK(groups >= 1, "conv2d: {} groups, expected at least 1", groups);
}

/// Returns the number of pixels of y along one axis. Throws if the dilated kernel is larger than x
/// with its padding.
int64_t out_pixels(const char* axis, int64_t pixels, int64_t kernel, int64_t stride,
                   int64_t padding, int64_t dilation) {
  const int64_t covered = dilation * (kernel - 1) + 1;
  TESSERA_CHECK(covered <= pixels + 2 * padding,
                "conv2d: the kernel's {} covers {} pixels, expected at most the {} of x with its "
                "padding",
                axis, covered, pixels + 2 * padding);
  return (pixels + 2 * padding - covered) / stride + 1;
}
}  // namespace

Conv2dSizes conv2d_sizes(const Shape& x, const Shape& weight, const Conv2dOptions& options) {
  check_options(options);
  const auto& [stride, padding, dilation, groups] = options;
  TESSERA_CHECK(x.rank() == 4 && x[1] > 0 && x[2] > 0,
                "conv2d: x has shape {}, expected [N, H, W, C] with at least 1 x 1 pixels", x);
  TESSERA_CHECK(weight.rank() == 4 && weight.elements() > 0,
                "conv2d: weight has shape {}, expected [O, C / groups, kh, kw] of at least 1 each",
                weight);
  const int64_t channels = x[3], out_channels = weight[0], height = weight[2], width = weight[3];
  TESSERA_CHECK(channels % groups == 0 && out_channels % groups == 0,
                "conv2d: {} groups, expected a divisor of the {} channels of x and of the {} of y",
                groups, channels, out_channels);
  TESSERA_CHECK(weight[1] == channels / groups,
                "conv2d: weight has shape {}, expected [O, {}, kh, kw] for {} groups of x {}",
                weight, channels / groups, groups, x);
  return {.images = x[0],
          .height = x[1],
          .width = x[2],
          .channels = channels,
          .out_height =
              out_pixels("height", x[1], height, stride.height, padding.height, dilation.height),
          .out_width =
              out_pixels("width", x[2], width, stride.width, padding.width, dilation.width),
          .out_channels = out_channels,
          .kernel_height = height,
          .kernel_width = width,
          .options = options};
}

namespace ops {

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  const Conv2dSizes sizes = conv2d_sizes(x.shape(), weight.shape(), options);
  TESSERA_CHECK(weight.dtype() == x.dtype(), "conv2d: weight has dtype {}, expected {}",
                dtype_name(weight.dtype()), dtype_name(x.dtype()));
  if (bias.defined()) {
    TESSERA_CHECK(bias.shape() == Shape{sizes.out_channels},
                  "conv2d: bias has shape {}, expected [{}]", bias.shape(), sizes.out_channels);
    TESSERA_CHECK(bias.dtype() == x.dtype(), "conv2d: bias has dtype {}, expected {}",
                  dtype_name(bias.dtype()), dtype_name(x.dtype()));
  }
  const trace::Scope scope("conv2d");
  const InUse in_use({&x, &weight, &bias});
  const Shape shape{sizes.images, sizes.out_height, sizes.out_width, sizes.out_channels};
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  kernels::conv2d_forward(current_context(x.device()), y, x, weight, bias, options);
  return record("conv2d", y, {x, weight, bias},
                [x = Kept(x), weight = saved(weight), options](const Tensor& dy,
                                                               InputGradients& grads) {
                  const auto wanted = [&](int input) {
                    return grads.wanted(input) ? grads.destination(input) : Tensor();
                  };
                  const Tensor dx = wanted(0);
                  const Tensor dweight = wanted(1);
                  const Tensor dbias = wanted(2);
                  const Tensor input = dweight.defined() ? x.get() : Tensor();
                  const InUse in_backward({&input, dx.defined() ? &weight : nullptr});
                  kernels::conv2d_backward(current_context(dy.device()), dx, dweight, dbias, dy,
                                           input, weight, options);
                });
}

}  // namespace ops

std::optional<Conv2dSizes> begin_conv2d_backward(const Context& context,
                                                 const Conv2dDestinations& to,
                                                 const Conv2dSources& from,
                                                 const Conv2dOptions& options) {
  const auto& [dx, dweight, dbias] = to;
  const auto& [dy, x, weight] = from;
  if (dbias.defined()) kernels::column_sums(context, dbias, dy);
  if (!dx.defined() && !dweight.defined()) return std::nullopt;
  const Conv2dSizes sizes = conv2d_sizes((dx.defined() ? dx : x).shape(),
                                         (dweight.defined() ? dweight : weight).shape(), options);
  if (sizes.y_elements() > 0) return sizes;
  if (dweight.defined()) kernels::fill(context, dweight, 0.0f);
  return std::nullopt;
}

namespace cpu {

namespace {

int64_t pass_workspace_bytes(const onednn::ConvArgs& args) {
  return winograd::suits(args) ? winograd::workspace_bytes(args)
                               : onednn::conv_workspace_bytes(args);
}

void compute_pass(const Context& context, const onednn::ConvArgs& args, const Tensor& x,
                  const Tensor& weight, const Tensor& y, const Tensor& bias) {
  const Tensor workspace = context.workspace({pass_workspace_bytes(args)}, DType::u8);
  const onednn::ConvMemory memory{.x = x.raw(),
                                  .weight = weight.raw(),
                                  .y = y.raw(),
                                  .bias = bias.defined() ? bias.raw() : nullptr,
                                  .workspace = workspace.raw()};
  winograd::suits(args) ? winograd::convolve(args, memory) : onednn::convolve(args, memory);
}

/// Computes y from x and weight if `pass` is forward. In the two gradient passes, `y` holds dy, and
/// the result dx or dweight is written to `x` or `weight`. If this CPU has no fast products in the
/// dtype of y, computes in f32, on converted copies.
void convolve(const Context& context, Conv2dPass pass, const Conv2dSizes& sizes, const Tensor& x,
              const Tensor& weight, const Tensor& y, const Tensor& bias = {}) {
  const onednn::ConvArgs args{pass, sizes, y.dtype(), bias.defined()};
  if (has_fast_gemm(y.dtype())) return compute_pass(context, args, x, weight, y, bias);
  const auto widened = [&](const Tensor& tensor, bool is_result) {
    if (!tensor.defined()) return tensor;
    const Tensor wide = context.workspace(tensor.shape());
    if (!is_result) convert(context, wide, tensor);
    return wide;
  };
  const Tensor wide_x = widened(x, pass == Conv2dPass::input_gradient);
  const Tensor wide_weight = widened(weight, pass == Conv2dPass::weight_gradient);
  const Tensor wide_y = widened(y, pass == Conv2dPass::forward);
  compute_pass(context, {pass, sizes, DType::f32, bias.defined()}, wide_x, wide_weight, wide_y,
               widened(bias, false));
  switch (pass) {
    case Conv2dPass::forward: return convert(context, y, wide_y);
    case Conv2dPass::input_gradient: return convert(context, x, wide_x);
    case Conv2dPass::weight_gradient: return convert(context, weight, wide_weight);
  }
}

int64_t workspace_bytes(Conv2dPass pass, const Conv2dSizes& sizes, DType dtype, bool has_bias) {
  if (sizes.y_elements() == 0) return 0;
  if (has_fast_gemm(dtype)) {
    return pass_workspace_bytes({pass, sizes, dtype, has_bias});
  }
  const int64_t widened = sizes.x_elements() + sizes.weight_elements() + sizes.y_elements() +
                          (has_bias ? sizes.out_channels : 0);
  return widened * dtype_size(DType::f32) +
         pass_workspace_bytes({pass, sizes, DType::f32, has_bias});
}

}  // namespace

void conv2d_forward(const Context& context, const Tensor& y, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, const Conv2dOptions& options) {
  const Conv2dSizes sizes = conv2d_sizes(x.shape(), weight.shape(), options);
  if (sizes.y_elements() == 0) return;
  convolve(context, Conv2dPass::forward, sizes, x, weight, y, bias);
}

void conv2d_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                     const Tensor& dbias, const Tensor& dy, const Tensor& x, const Tensor& weight,
                     const Conv2dOptions& options) {
  const auto sizes =
      begin_conv2d_backward(context, {dx, dweight, dbias}, {dy, x, weight}, options);
  if (!sizes) return;
  if (dx.defined()) convolve(context, Conv2dPass::input_gradient, *sizes, dx, weight, dy);
  if (dweight.defined()) convolve(context, Conv2dPass::weight_gradient, *sizes, x, dweight, dy);
}

int64_t conv2d_forward_workspace(const Context&, const Conv2dSizes& sizes, DType dtype,
                                 bool has_bias) {
  return workspace_bytes(Conv2dPass::forward, sizes, dtype, has_bias);
}

int64_t conv2d_backward_workspace(const Context&, const Conv2dSizes& sizes, DType dtype,
                                  const Conv2dGradients& wanted) {
  const auto bytes = [&](bool is_wanted, Conv2dPass pass) {
    return is_wanted ? workspace_bytes(pass, sizes, dtype, false) : 0;
  };
  return std::max(bytes(wanted.x, Conv2dPass::input_gradient),
                  bytes(wanted.weight, Conv2dPass::weight_gradient));
}

}  // namespace cpu
}  // namespace tessera
