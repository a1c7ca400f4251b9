// Gives a tensor of any float dtype values that come in f32: initial ones, or those of a file.
#pragma once

#include <functional>
#include <span>

#include "core/tensor.h"

namespace tessera {

/// Writes elements [begin, begin + out.size()).
using ValueSource = std::function<void(int64_t begin, std::span<float> out)>;

/// Workspace that `assign` takes for a tensor of 16-bit values on the CPU; f32 is written in place.
/// For one on CUDA it takes as much, and room for as many values of the tensor's dtype, on the CPU.
inline constexpr int64_t assign_workspace_bytes = int64_t{1} << 18;

/// Gives `tensor`, f32, bf16 or f16 in any shape, its elements from `source`, which is asked for
/// them in ascending order. What f16 cannot hold becomes infinity.
void assign(const Tensor& tensor, const ValueSource& source);

}  // namespace tessera
