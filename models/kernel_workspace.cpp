#include "models/kernel_workspace.h"

#include "core/cuda.h"
#include "core/cuda/blas_lt.h"

namespace tessera::models {

bool can_be_asked(Device device) {
  return device.is_cpu() || device.index < cuda::device_count();
}

int64_t product_workspace(const Context& context, const cpu::GemmArgs& args) {
  if (context.device.is_cpu()) return cpu::gemm_workspace_bytes(args);
  const auto operand = [](const cpu::ConstMatrix& x) {
    return cuda::ConstMatrix{x.data, x.row_stride, x.column_stride, x.batch_stride};
  };
  return cuda::workspace_bytes(context, {.m = args.m,
                                         .n = args.n,
                                         .k = args.k,
                                         .a = operand(args.a),
                                         .b = operand(args.b),
                                         .c = {args.c.data, args.c.row_stride},
                                         .bias = args.bias,
                                         .accumulate = args.accumulate,
                                         .dtype = args.dtype,
                                         .c_dtype = args.c_dtype});
}

// On CUDA in chunks of 64 rows, where there is more than one.
int64_t bias_gradient_workspace(Device device, int64_t rows, int64_t channels) {
  constexpr int64_t chunk = 64;
  return device.is_cpu() || rows <= chunk ? 0 : pieces(rows, chunk) * channels * 4;
}

// An fp64 for every block of losses.
int64_t mean_workspace(int64_t rows) {
  constexpr int64_t sum_block = 4096;
  return pieces(rows, sum_block) * 8;
}

}  // namespace tessera::models
