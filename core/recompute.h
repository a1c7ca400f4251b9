// Activation checkpointing (Chen et al., "Training deep nets with sublinear memory cost",
// arXiv:1604.06174). The activations of a segment, a part of the model, are not kept for backward.
// Backward computes them again. This saves the memory of the segment's activations and costs one
// more forward of the segment.
//
//   const auto out = recompute("block", {x}, [this](const std::vector<Tensor>& in) {
//     return std::vector<Tensor>{forward(in[0])};
//   });
//
// Losses and gradients have the same bits as without checkpointing, and a parameter's gradient is
// complete at the same point of backward. Between forward and backward a segment keeps only its
// inputs in memory. During backward, the activations of one segment at a time are in memory, with
// those of the segments that contain it.
#pragma once

#include <functional>
#include <vector>

#include "core/tensor.h"

namespace tessera {

/// A function of inputs and parameters. Inputs may be undefined. In the forward a segment runs
/// once. In backward it runs once, and once more for each segment that contains it. A segment must
/// compute the same values each time. Everything that a segment captures must live until backward
/// ends.
using Segment = std::function<std::vector<Tensor>(const std::vector<Tensor>&)>;

/// Returns segment(inputs), differentiable in the inputs and in the parameters that the segment
/// uses. If the segment returns an input, a parameter or an undefined tensor unchanged, the result
/// is that tensor itself. Calls may be nested: a segment may call recompute. If recording is off,
/// only calls the segment. Throws if an operation of the segment reads a tensor that was made
/// outside the segment, has history and is not an input. Pass such a tensor as an input, or detach
/// it. If the tensor was made in a segment that contains this one, only backward throws. Reads
/// while recording is off, and in comparisons, are allowed.
std::vector<Tensor> recompute(const char* name, std::vector<Tensor> inputs, Segment segment);

/// True while this thread's backward runs a segment again. If a segment has an effect besides its
/// results, such as counting its inputs, the segment must skip the effect while this is true.
bool segment_is_repeated();

}  // namespace tessera
