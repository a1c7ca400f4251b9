// Activation checkpointing: a part of the model whose activations are not kept for backward but
// computed again there (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174). It trades one more forward of that part for its memory.
//
//   const auto out = recompute("block", {x}, [this](const std::vector<Tensor>& in) {
//     return std::vector<Tensor>{forward(in[0])};
//   });
//
// Losses and gradients have the same bits as without it, and a parameter's gradient is complete at
// the same point of backward. Held are the inputs, and in backward the activations of one segment.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace tessera {

/// Operations on the inputs, each of which may be undefined, and on parameters. It runs twice, and
/// must do the same both times; what it captures must live until backward.
using Segment = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// segment(inputs), differentiable in the inputs and in the parameters that the segment has. An
/// output that the segment only hands on (an input, a parameter, an undefined tensor) is that
/// tensor itself. Segments may contain segments. Throws if the segment takes a tensor with history
/// that is not among its inputs, since that would keep what is to be freed. Where gradients are off
/// it is just segment(inputs).
std::vector<Tensor> recompute(const char* name, std::vector<Tensor> inputs, Segment segment);

}  // namespace tessera
