#include "models/kernel_workspace.h"

#include <algorithm>

#include "core/cuda.h"
#include "core/product.h"

namespace tessera::models {

bool can_be_queried(Device device) {
  return device.is_cpu() || device.index < cuda::device_count();
}

// If there is more than one chunk of 64 rows, CUDA first sums each chunk into the workspace. The
// CPU needs no workspace.
int64_t bias_gradient_workspace(Device device, int64_t rows, int64_t channels) {
  constexpr int64_t chunk = 64;
  return device.is_cpu() || rows <= chunk ? 0 : pieces(rows, chunk) * channels * 4;
}

// The kernel of sum and mean stores one fp64 for every block of 4096 elements.
int64_t mean_workspace(int64_t rows) {
  constexpr int64_t sum_block = 4096;
  return pieces(rows, sum_block) * 8;
}

int64_t linear_workspace(const Context& context, DType dtype, const LinearSizes& sizes,
                         bool training) {
  const auto& [rows, in, out, bias] = sizes;
  const auto product = [&](ProductArgs args) {
    args.dtype = dtype;
    args.c_dtype = dtype;
    return kernels::product_workspace_bytes(context, args);
  };
  const int64_t y = product({.m = rows,
                             .n = out,
                             .k = in,
                             .a = {nullptr, in},
                             .b = {nullptr, 1, in},
                             .c = {nullptr, out},
                             .bias = bias ? at(aligned) : nullptr});
  if (!training) return y;
  const int64_t dx = product(
      {.m = rows, .n = in, .k = out, .a = {nullptr, out}, .b = {nullptr, in}, .c = {nullptr, in}});
  const int64_t dweight = product({.m = out,
                                   .n = in,
                                   .k = rows,
                                   .a = {nullptr, 1, out},
                                   .b = {nullptr, in},
                                   .c = {nullptr, in}});
  const int64_t dbias = bias ? bias_gradient_workspace(context.device, rows, out) : 0;
  return std::max({y, dx, dweight, dbias});
}

}  // namespace tessera::models
