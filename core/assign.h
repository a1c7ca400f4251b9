// Fills a tensor of any float dtype from f32 values, such as initial values or values from a file.
#pragma once

#include <functional>
#include <span>

#include "core/tensor.h"

namespace tessera {

/// Writes the values of elements [begin, begin + out.size()) to `out`.
using ValueSource = std::function<void(int64_t begin, std::span<float> out)>;

/// The bytes of CPU workspace in which `assign` collects f32 values:
///  - A 16-bit tensor on the CPU needs this workspace, from which the values are converted.
///  - A tensor on CUDA needs it too, and a second CPU workspace with the same number of values in
///    the tensor's dtype, from which they are copied to the device.
///  - An f32 tensor on the CPU needs no workspace, because the values are written in place.
inline constexpr int64_t assign_workspace_bytes = int64_t{1} << 18;

/// Fills `tensor` (f32, bf16 or f16, any shape) from `source`, which is called for consecutive
/// ranges of elements, in ascending order. Values too large for f16 become infinity. Throws for
/// other dtypes.
void assign(const Tensor& tensor, const ValueSource& source);

}  // namespace tessera
