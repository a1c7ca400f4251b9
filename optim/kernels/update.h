// Launchers of the update rules. They update contiguous ranges of elements. A range consists of
// whole blocks of 256 elements; only a buffer's last block may be shorter. On the CPU, a thread's
// part of a range also consists of whole blocks, because an element that is computed alone may get
// other bits than in a SIMD vector (core/ops/blocks.h). So the bits of an element do not depend on
// how the blocks are divided among ranks and threads. Segments and groups are in host memory;
// scalars are in memory of the context's device.
#pragma once

#include <cstdint>
#include <span>

#include "core/dispatch.h"
#include "optim/kernels/step_scalars.h"

namespace tessera {

/// Elements [begin, end) of a flat buffer belong to parameter group `group` and use the group's
/// hyper-parameters. `begin` is a multiple of 256. `end` is a multiple of 256 or the end of the
/// buffer.
struct UpdateSegment {
  int64_t begin = 0;
  int64_t end = 0;
  int group = 0;
};

/// Hyper-parameters of one parameter group for one step. They are plain data, so that they can be
/// copied to the device.
struct UpdateHyper {
  float learning_rate = 0;
  float beta1 = 0;              // Adam; for SGD the momentum
  float beta2 = 0;
  float epsilon = 0;
  float weight_decay = 0;
  float bias_correction1 = 1;   // 1 - beta1^t in update t, counted from 1
  float bias_correction2 = 1;   // 1 - beta2^t
  float gradient_scale = 1;     // factor on the gradients, such as the clip factor
  bool decoupled_decay = true;  // true: AdamW; false: Adam, with weight decay in the gradient
  bool nesterov = false;
  bool first_step = false;      // SGD: the momentum buffer is set to the gradient
};

// If `scalars` is not null, an update multiplies the gradient_scale of each group by
// scalars->gradient_scale. If scalars->skip is set, the update changes nothing.

/// Adam (Kingma and Ba, arXiv:1412.6980) and AdamW (Loshchilov and Hutter, arXiv:1711.05101).
/// Parameters and moments are f32; gradients have any floating-point dtype.
TESSERA_KERNEL(adam_update, const Tensor& parameters, const Tensor& first_moment,
               const Tensor& second_moment, const Tensor& gradients,
               std::span<const UpdateSegment> segments, std::span<const UpdateHyper> groups,
               const StepScalars* scalars = nullptr)
/// SGD with momentum, as in PyTorch. The tensor `momentum` may be undefined if no group has
/// momentum. Parameters and momentum are f32; gradients have any floating-point dtype.
TESSERA_KERNEL(sgd_update, const Tensor& parameters, const Tensor& momentum,
               const Tensor& gradients, std::span<const UpdateSegment> segments,
               std::span<const UpdateHyper> groups, const StepScalars* scalars = nullptr)

/// Adagrad (Duchi et al., JMLR 2011) as PyTorch defines it. `sums` holds the sums of squared
/// gradients. Parameters and `sums` are f32; gradients have any floating-point dtype.
TESSERA_KERNEL(adagrad_update, const Tensor& parameters, const Tensor& sums,
               const Tensor& gradients, std::span<const UpdateSegment> segments,
               std::span<const UpdateHyper> groups, const StepScalars* scalars = nullptr)

}  // namespace tessera
