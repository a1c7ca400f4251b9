// The input of a plan for a GPT: its parameters, its activations, and the work of a micro-batch.
// The parameters are listed without building the whole model.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "optim/plan/step_time.h"

namespace tessera::train {

/// Lists the parameters of models::Gpt(config), all of `dtype`. Builds only a model of one layer.
std::vector<optim::PlanParameter> gpt_parameters(const models::GptConfig& config, DType dtype);

/// Returns the total number of elements.
int64_t parameter_elements(const std::vector<optim::PlanParameter>& parameters);

/// Sets the plan's peaks of activations and workspace for training in micro-batches of `sequences`
/// whole contexts. `device` is this CPU with this process's number of threads, or a GPU. If this
/// process has no such GPU, the workspace stays unknown. For a GPU, also sets the host memory from
/// which the GPU copies tokens. Throws InputError if a number of bytes exceeds int64.
void add_activations(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                     int64_t sequences, Device device);

/// Raises the plan's peak of workspace to what an evaluation in micro-batches of `sequences` whole
/// contexts needs, if that is more. An unknown workspace stays unknown. The peak of activations is
/// not changed, because an evaluation never has more activations than training. Call
/// add_activations first, with the same arguments: it also checks that the bytes fit into int64.
void add_evaluation(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                    int64_t sequences, Device device);

/// Returns the work of a micro-batch of whole contexts, forward and backward: the number of
/// operations, and the element-wise work, converted to bytes moved in memory. Operations are
/// counted as in nanoGPT: 6 per token and parameter, without position embeddings, and 12 L T C per
/// token for attention (L layers, T context, C width). Causal attention needs only half of these
/// 12 L T C operations, but runs at about half the speed of other matrix products. The estimated
/// time is therefore about right.
optim::MicroBatchWork gpt_work(const models::GptConfig& config, int64_t sequences, DType dtype);

}  // namespace tessera::train
