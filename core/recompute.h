// Activation checkpointing: the activations of a part of the model are not kept for backward, but
// computed again in backward (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174). This costs one more forward of that part and saves its activations' memory.
//
//   const auto out = recompute("block", {x}, [this](const std::vector<Tensor>& in) {
//     return std::vector<Tensor>{forward(in[0])};
//   });
//
// Losses and gradients have the same bits as without checkpointing, and a parameter's gradient is
// complete at the same point of backward. Between forward and backward only the segments' inputs
// are held; backward holds the activations of one segment at a time.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace tessera {

/// A function of the inputs, each of which may be undefined, and of parameters. It runs once in the
/// forward and once in backward, and must compute the same both times. Everything that it captures
/// must live until backward.
using Segment = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Returns segment(inputs), differentiable in the inputs and in the parameters that the segment
/// uses. If the segment returns an input, a parameter or an undefined tensor as it is, the result
/// is that tensor itself. A segment may call recompute itself. Throws if the segment uses a tensor
/// with history that is not among its inputs, because the graph would keep that tensor's memory. If
/// recording is off, only calls the segment.
std::vector<Tensor> recompute(const char* name, std::vector<Tensor> inputs, Segment segment);

}  // namespace tessera
