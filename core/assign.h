// Fills a tensor of any float dtype from f32 values: initial values, or those of a file.
#pragma once

#include <functional>
#include <span>

#include "core/tensor.h"

namespace tessera {

/// Writes the values of elements [begin, begin + out.size()) to `out`.
using ValueSource = std::function<void(int64_t begin, std::span<float> out)>;

/// Bytes of workspace on the CPU that `assign` takes for a 16-bit tensor on the CPU; f32 is written
/// in place there. For a tensor on CUDA it takes these bytes, and room on the CPU for the same
/// number of values in the tensor's dtype.
inline constexpr int64_t assign_workspace_bytes = int64_t{1} << 18;

/// Fills `tensor` (f32, bf16 or f16, any shape) from `source`, which is called for its elements in
/// ascending order. Values too large for f16 become infinity.
void assign(const Tensor& tensor, const ValueSource& source);

}  // namespace tessera
