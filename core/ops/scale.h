// The kernel launchers of scale: with a factor on the host, and with a factor on the device.
#pragma once

#include "core/dispatch.h"

namespace tessera {

/// y = factor * x, element by element; y may be x.
TESSERA_KERNEL(scale, const Tensor& y, const Tensor& x, float factor)
/// y = factor[0] * x, rounded to the dtype of y. factor is f32 on the device of y, so the host does
/// not wait for its value. y may be x.
TESSERA_KERNEL(scale_by, const Tensor& y, const Tensor& x, const Tensor& factor)

}  // namespace tessera
