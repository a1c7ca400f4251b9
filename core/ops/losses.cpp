// Losses that are made of other operations.
#include "core/image_ops.h"
#include "core/ops.h"

namespace tessera::ops {

Tensor mse_loss(const Tensor& a, const Tensor& b) { return mean(square(a - b)); }

Tensor hinge_loss(const Tensor& scores, const Tensor& targets) {
  return mean(relu(1.0f - scores * targets));
}

}  // namespace tessera::ops
