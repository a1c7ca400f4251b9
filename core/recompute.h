// Activation checkpointing: a part of the model whose activations are not kept for backward but
// computed again there (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174). It trades one more forward of that part for its memory.
//
//   const auto out = recompute("block", {x}, [this](const std::vector<Tensor>& in) {
//     return std::vector<Tensor>{forward(in[0])};
//   });
//
// Losses and gradients have the same bits as without it, and a parameter's gradient is complete at
// the same point of backward. Between forward and backward only the inputs are held; in backward,
// the activations of one segment at a time.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace tessera {

/// A function of the inputs, each of which may be undefined, and of parameters. It runs twice, and
/// must do the same both times. Everything that it captures must live until backward.
using Segment = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Returns segment(inputs), differentiable in the inputs and in the parameters that the segment
/// uses. If the segment returns an input, a parameter or an undefined tensor as it is, the result
/// is that tensor itself. Segments may contain segments. Throws if the segment uses a tensor with
/// history that is not among its inputs, because the graph would keep its memory. If gradients are
/// off, it just calls the segment.
std::vector<Tensor> recompute(const char* name, std::vector<Tensor> inputs, Segment segment);

}  // namespace tessera
