// A GPT as a plan needs it: its parameters, without building it, and the work of a micro-batch.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "optim/plan/step_time.h"

namespace tessera::train {

/// The parameters of models::Gpt(config), all of `dtype`, as a list for any number of layers.
std::vector<optim::PlanParameter> gpt_parameters(const models::GptConfig& config, DType dtype);

int64_t parameter_elements(const std::vector<optim::PlanParameter>& parameters);

/// Sets the plan's peaks of activations and workspace for training in micro-batches of `sequences`
/// whole contexts, on this processor with this process's number of threads, or on a GPU like
/// `device`. Without such a GPU workspace stays unknown. Also sets the host memory of a GPU's
/// tokens.
void add_activations(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                     int64_t sequences, Device device);

/// Operations and element-wise bytes of a micro-batch of whole contexts, forward and backward.
/// Operations are counted as in nanoGPT: 6 per token and parameter, without position embeddings,
/// and 12 L T C per token for attention. (Causal attention needs half of these, and reaches about
/// half of the speed of other products.)
optim::MicroBatchWork gpt_work(const models::GptConfig& config, int64_t sequences, DType dtype);

}  // namespace tessera::train
