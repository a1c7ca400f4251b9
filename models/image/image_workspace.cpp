#include "models/image/image_workspace.h"

#include <algorithm>

#include "core/ops/conv2d.h"
#include "models/kernel_workspace.h"

namespace tessera::models {
namespace {

/// The workspace bytes that each of batch norm's four kernels allocates. `sums` is for
/// batch_norm_backward_sums. The results of this kernel, two f32 per channel, are also in
/// workspace. ImageWorkspace::batch_norm counts the results separately.
struct NormWorkspace {
  int64_t statistics, forward, sums, backward;
};

// If there are fewer than 256 channels, the CPU joins several rows into one wide row. The CPU sums
// the wide rows in at most 32 chunks (core/ops/batch_norm_rows.h). All chunks but the last have the
// same number of wide rows, at least 32.
NormWorkspace cpu_norm(int64_t rows, int64_t channels) {
  const int64_t fold = pieces(256, channels);
  const int64_t width = fold * channels;
  const int64_t wide_rows = rows / fold;
  const int64_t chunk = std::max<int64_t>(32, pieces(wide_rows, 32));
  const int64_t chunks = std::max<int64_t>(1, pieces(wide_rows, chunk));
  return {.statistics = chunks * 4 * width * 4,
          .forward = 3 * width * 4,
          .sums = (chunks * 2 + 1) * width * 4,
          .backward = 4 * width * 4};
}

// CUDA divides the rows into chunks, and the channels of each chunk among blocks of 256 threads
// (RowGrid in core/ops/batch_norm.cu). The grid has at most 528 blocks, unless a single chunk needs
// more. A thread handles as many channels as fit into 16 bytes if this number divides the channel
// count, or else one channel. At most 32 threads of a block share a row.
NormWorkspace cuda_norm(int64_t rows, int64_t channels, int64_t element) {
  const int64_t wide = 16 / element;
  const int64_t own = channels % wide == 0 ? wide : 1;
  int64_t lanes = 1;
  while (lanes < 32 && lanes * own < channels) lanes *= 2;
  const int64_t most = std::max<int64_t>(1, 528 / pieces(channels, lanes * own));
  const int64_t rows_at_once = 256 / lanes;
  const int64_t chunk = pieces(rows, most * rows_at_once) * rows_at_once;
  const int64_t partial = pieces(rows, chunk) * 2 * channels * 4;
  return {.statistics = partial, .forward = 0, .sums = partial, .backward = 0};
}

}  // namespace

int64_t ImageWorkspace::conv2d(const Conv2dSizes& sizes, bool has_bias, bool wants_dx) const {
  const int64_t forward = kernels::conv2d_forward_workspace(context, sizes, dtype, has_bias);
  if (!training) return forward;
  const Conv2dGradients wanted{.x = wants_dx, .weight = true, .bias = has_bias};
  return std::max(forward, kernels::conv2d_backward_workspace(context, sizes, dtype, wanted));
}

// Two small workspaces are not counted: one for the update of the running statistics, and one for
// averages over the parts of a batch (BatchParts in core/image_ops.h). Each has at most 8 bytes per
// channel. Neither raises the peak, because the kernel that computes the batch's statistics runs
// earlier, with at least as much workspace, and has freed its workspace by then.
int64_t ImageWorkspace::batch_norm(int64_t rows, int64_t channels) const {
  const NormWorkspace norm = context.device.is_cpu()
                                 ? cpu_norm(rows, channels)
                                 : cuda_norm(rows, channels, dtype_size(dtype));
  if (!training) return norm.forward;
  const int64_t sums = 2 * channels * 4;
  return std::max({norm.statistics, norm.forward, sums + std::max(norm.sums, norm.backward)});
}

int64_t ImageWorkspace::linear(int64_t rows, int64_t in, int64_t out) const {
  return linear_workspace(context, dtype, {rows, in, out}, training);
}

int64_t ImageWorkspace::cross_entropy(int64_t rows, int64_t classes, bool smoothed) const {
  const int64_t forward = rows * 4 + mean_workspace(rows);
  const bool in_f32 = training && smoothed && dtype != DType::f32;
  return std::max(forward, in_f32 ? rows * classes * 4 : 0);
}

}  // namespace tessera::models
