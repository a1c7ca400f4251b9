// conv2d on CUDA, by cuDNN. cuDNN needs the weight with its channels last: (O, kh, kw, C / groups).
// This layout differs from (O, C / groups, kh, kw) in memory if a filter has more than one pixel
// and a group has more than one channel. In this case the weight is transposed into the workspace,
// and the weight's gradient is computed in the workspace and transposed back. If there is a bias, y
// is first filled with the bias, and the convolution is then added to y. For some sizes, cuDNN's
// kernels round the convolution before this addition (seen on an H200 with C = 4 and O = 6).
//
// cuDNN needs addresses that are multiples of 16 bytes. A slice of a batch may begin at another
// address. cuDNN then reads a copy of it in the workspace. A result that must be written to such an
// address is computed in the workspace and copied.
#include "core/ops/conv2d.h"

#include <algorithm>

#include "core/cuda/cudnn_conv.h"
#include "core/cuda/kernel.cuh"
#include "core/ops/copy.h"
#include "core/ops/linear.h"
#include "core/ops/transpose.h"

namespace tessera::cuda {

namespace {

constexpr int copy_threads = 256;

/// Sets every row of y (R, C) to `row`. A thread writes `width` elements.
template <class T, int width>
__global__ void __launch_bounds__(copy_threads)
    repeat_row_kernel(T* y, const T* row, int64_t elements, int64_t columns) {
  const int64_t i = (int64_t{blockIdx.x} * copy_threads + threadIdx.x) * width;
  if (i >= elements) return;
  if constexpr (width == 1) {
    y[i] = row[i % columns];
  } else {
    *reinterpret_cast<Pack<T>*>(y + i) = *reinterpret_cast<const Pack<T>*>(row + i % columns);
  }
}

void repeat_row(const Context& context, const Tensor& y, const Tensor& row) {
  visit_float(y.dtype(), "conv2d", [&]<class T>() {
    const int64_t columns = row.elements();
    const bool wide = columns % Pack<T>::size == 0 && packable(y.raw()) && packable(row.raw());
    const auto kernel = wide ? repeat_row_kernel<T, Pack<T>::size> : repeat_row_kernel<T, 1>;
    const int64_t per_block = copy_threads * (wide ? Pack<T>::size : 1);
    launch(context, "conv2d: bias", {blocks_for(y.elements(), per_block), copy_threads}, kernel,
           y.data<T>(), row.data<T>(), y.elements(), columns);
  });
}

/// Returns `operand` itself if cuDNN can read it, otherwise a copy in the workspace.
Tensor readable(const Context& context, const Tensor& operand) {
  if (packable(operand.raw())) return operand;
  const Tensor copied = context.workspace(operand.shape(), operand.dtype());
  copy(context, copied, operand);
  return copied;
}

/// Returns the tensor to which cuDNN writes `result`: `result` itself if cuDNN can write to it,
/// otherwise a tensor in the workspace. The caller then copies this tensor to `result`. copy does
/// nothing if they are the same memory.
Tensor writable(const Context& context, const Tensor& result) {
  if (packable(result.raw())) return result;
  return context.workspace(result.shape(), result.dtype());
}

int64_t taps(const Conv2dSizes& sizes) { return sizes.kernel_height * sizes.kernel_width; }

/// True if (O, C / groups, kh, kw) and (O, kh, kw, C / groups) have the same layout in memory.
bool has_channels_last(const Conv2dSizes& sizes) {
  return taps(sizes) == 1 || sizes.group_channels() == 1;
}

Tensor empty_filter(const Context& context, const Conv2dSizes& sizes, DType dtype) {
  return context.workspace({sizes.out_channels, taps(sizes), sizes.group_channels()}, dtype);
}

/// Returns the weight in cuDNN's layout: transposed into the workspace, or `weight` itself if it
/// already has this layout and cuDNN can read it.
Tensor as_filter(const Context& context, const Conv2dSizes& sizes, const Tensor& weight) {
  if (has_channels_last(sizes)) return readable(context, weight);
  const Tensor filter = empty_filter(context, sizes, weight.dtype());
  transpose(context, filter,
            weight.view({sizes.out_channels, sizes.group_channels(), taps(sizes)}));
  return filter;
}

void weight_gradient(const Context& context, const Conv2dSizes& sizes, const Tensor& dweight,
                     const Tensor& dy, const Tensor& x) {
  const bool is_filter = has_channels_last(sizes);
  const Tensor filter =
      is_filter ? writable(context, dweight) : empty_filter(context, sizes, dweight.dtype());
  const Tensor images = readable(context, x);
  convolve(context, {Conv2dPass::weight_gradient, sizes, dy.dtype()},
           {.x = images.raw(), .filter = filter.raw(), .y = dy.raw()});
  if (is_filter) return copy(context, dweight, filter);
  transpose(context, dweight.view({sizes.out_channels, sizes.group_channels(), taps(sizes)}),
            filter);
}

int64_t workspace_bytes(const Context& context, Conv2dPass pass, const Conv2dSizes& sizes,
                        DType dtype) {
  const int64_t filter = has_channels_last(sizes) ? 0 : sizes.weight_elements();
  return filter * dtype_size(dtype) + conv_workspace_bytes(context, {pass, sizes, dtype});
}

}  // namespace

void conv2d_forward(const Context& context, const Tensor& y, const Tensor& x, const Tensor& weight,
                    const Tensor& bias, const Conv2dOptions& options) {
  const Conv2dSizes sizes = conv2d_sizes(x.shape(), weight.shape(), options);
  if (sizes.y_elements() == 0) return;
  const Tensor images = readable(context, x);
  const Tensor written = writable(context, y);
  if (bias.defined()) repeat_row(context, written, bias);
  const Tensor filter = as_filter(context, sizes, weight);
  convolve(context, {Conv2dPass::forward, sizes, y.dtype()},
           {.x = images.raw(),
            .filter = filter.raw(),
            .y = written.raw(),
            .accumulate = bias.defined()});
  copy(context, y, written);
}

void conv2d_backward(const Context& context, const Tensor& dx, const Tensor& dweight,
                     const Tensor& dbias, const Tensor& dy, const Tensor& x, const Tensor& weight,
                     const Conv2dOptions& options) {
  const auto sizes =
      begin_conv2d_backward(context, {dx, dweight, dbias}, {dy, x, weight}, options);
  if (!sizes) return;
  const Tensor dy_read = readable(context, dy);
  if (dx.defined()) {
    const Tensor filter = as_filter(context, *sizes, weight);
    const Tensor written = writable(context, dx);
    convolve(context, {Conv2dPass::input_gradient, *sizes, dy.dtype()},
             {.x = written.raw(), .filter = filter.raw(), .y = dy_read.raw()});
    copy(context, dx, written);
  }
  if (dweight.defined()) weight_gradient(context, *sizes, dweight, dy_read, x);
}

int64_t conv2d_forward_workspace(const Context& context, const Conv2dSizes& sizes, DType dtype,
                                 bool) {
  if (sizes.y_elements() == 0) return 0;
  return workspace_bytes(context, Conv2dPass::forward, sizes, dtype);
}

int64_t conv2d_backward_workspace(const Context& context, const Conv2dSizes& sizes, DType dtype,
                                  const Conv2dGradients& wanted) {
  if (sizes.y_elements() == 0) return 0;
  int64_t bytes = 0;
  if (wanted.x) bytes = workspace_bytes(context, Conv2dPass::input_gradient, sizes, dtype);
  if (wanted.weight) {
    bytes = std::max(bytes, workspace_bytes(context, Conv2dPass::weight_gradient, sizes, dtype));
  }
  if (!wanted.bias) return bytes;
  const int64_t rows = sizes.y_elements() / sizes.out_channels;
  return std::max(bytes, column_sums_workspace(rows, sizes.out_channels));
}

}  // namespace tessera::cuda
