#include "models/kernel_workspace.h"

#include "core/cuda.h"

namespace tessera::models {

bool can_be_asked(Device device) {
  return device.is_cpu() || device.index < cuda::device_count();
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
