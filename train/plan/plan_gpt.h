// What a GPT means to a plan: its parameters, without building it, and what a micro-batch costs.
#pragma once

#include <cstdint>
#include <vector>

#include "core/dtype.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "optim/plan/step_time.h"

namespace tessera::train {

/// Those of models::Gpt(config), all of `dtype`; for any number of layers at the cost of a list.
std::vector<optim::PlanParameter> gpt_parameters(const models::GptConfig& config, DType dtype);

int64_t parameter_elements(const std::vector<optim::PlanParameter>& parameters);

/// Sets the plan's peaks of activations and workspace: of training in micro-batches of `sequences`
/// whole contexts, on this processor with this process's number of threads, or on a GPU like
/// `device`. Where there is none workspace stays unknown. And what a GPU's tokens take on the host.
void add_activations(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                     int64_t sequences, Device device);

/// Operations and element-wise bytes of a micro-batch of whole contexts, forward and backward.
/// Operations are counted as by nanoGPT: 6 a token and parameter, without position embeddings, and
/// 12 L T C a token for attention. (Causal attention needs half of these, and reaches about half of
/// the speed of other products.)
optim::MicroBatchWork gpt_work(const models::GptConfig& config, int64_t sequences, DType dtype);

}  // namespace tessera::train
