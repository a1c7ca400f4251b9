#include "train/plan/plan_gpt.h"

#include <algorithm>
#include <string>

#include "data/tokens/token_input.h"
#include "models/gpt/gpt_memory.h"
#include "optim/plan/checked_int.h"

namespace tessera::train {

std::vector<optim::PlanParameter> gpt_parameters(const models::GptConfig& config, DType dtype) {
  models::GptConfig small = config;
  small.layers = 1;
  models::Gpt model(small);
  model.to(dtype);
  std::vector<optim::PlanParameter> before;
  std::vector<optim::PlanParameter> layer;
  std::vector<optim::PlanParameter> after;
  const std::string first = "h.0";
  for (const optim::PlanParameter& parameter : optim::plan_parameters(model)) {
    if (parameter.name.starts_with(first + ".")) {
      layer.push_back(parameter);
    } else {
      (layer.empty() ? before : after).push_back(parameter);
    }
  }
  // All layers have parameters of the same sizes, and each layer is a block of its own
  // (Module::begin_block). The parameters after the layers are in the block of the last layer.
  std::vector<optim::PlanParameter> all = before;
  for (int64_t i = 0; i < config.layers; ++i) {
    const std::string name = "h." + std::to_string(i);
    for (optim::PlanParameter parameter : layer) {
      parameter.name.replace(0, first.size(), name);
      parameter.block += i;
      all.push_back(std::move(parameter));
    }
  }
  for (optim::PlanParameter parameter : after) {
    parameter.block += config.layers - 1;
    all.push_back(std::move(parameter));
  }
  return all;
}

int64_t parameter_elements(const std::vector<optim::PlanParameter>& parameters) {
  int64_t sum = 0;
  for (const optim::PlanParameter& parameter : parameters) sum += parameter.elements;
  return sum;
}

void add_activations(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                     int64_t sequences, Device device) {
  // Checks that an upper bound of the memory fits into int64: CheckedInt throws on overflow. The
  // check is needed, because the memory itself is computed without such checks.
  using optim::CheckedInt;
  constexpr int64_t more_than_all = 256;  // a token takes fewer bytes than `row` times this
  const CheckedInt row = CheckedInt(config.width) * config.layers + config.vocab + config.context;
  (void)(CheckedInt(sequences) * config.context * row * more_than_all);
  const models::GptMemory memory =
      models::gpt_training_memory(config, dtype, sequences, config.context, device);
  plan.activations = memory.activations;
  plan.workspace = memory.workspace;
  if (plan.workspace) plan.workspace = std::max(*plan.workspace, plan.filling);
  plan.host.activations = data::TokenInput::host_bytes({sequences, config.context}, device);
}

void add_evaluation(optim::Plan& plan, const models::GptConfig& config, DType dtype,
                    int64_t sequences, Device device) {
  if (!plan.workspace) return;
  // An evaluation may need more workspace than a step. A step may keep its logits as activations
  // for the backward pass, but an evaluation has its logits in workspace.
  const models::GptMemory memory =
      models::gpt_evaluation_memory(config, dtype, sequences, config.context, device);
  plan.workspace = std::max(*plan.workspace, *memory.workspace);
}

optim::MicroBatchWork gpt_work(const models::GptConfig& config, int64_t sequences, DType dtype) {
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  const double tokens = number(sequences) * number(config.context);
  const double width = number(config.width);
  const double layers = number(config.layers);
  const double head = number(config.vocab) * width;
  // Parameters of a layer: c_attn, both c_proj, c_fc, their biases, and two norms.
  const double blocks = layers * (12 * width * width + 13 * width);
  const double attention = layers * number(config.context) * width;

  // Elements that element-wise passes read and write, per token and layer, in units of the width:
  //   forward    two norms with the residual 2 x 4, GELU 8
  //   backward   norms recomputed 4, GELU recomputed 8, GELU 12, two norms 2 x 6, bias gradients 9
  constexpr double passes = 16 + 45;
  // Element-wise passes also compute, so they take longer than their memory traffic alone. Measured
  // on a CPU (Zen 4, fp32 and bf16, widths of 256 to 768), the passes took about four times as long
  // as an optimizer update that moves the same number of bytes.
  constexpr double arithmetic = 4;
  // Bytes per logit in cross-entropy, counted as f32. Each logit is read three times (for the row's
  // maximum, for the sum of exponentials, and for the gradient), and its gradient is written once.
  constexpr double head_bytes = 4 * 4;
  const double element_bytes = number(dtype_size(dtype));
  const double bytes = arithmetic * (layers * passes * width * element_bytes +
                                     head_bytes * number(config.vocab));
  return {.flops = tokens * (6 * (blocks + head + 2 * width) + 12 * attention),
          .recomputed_flops = config.recompute ? tokens * (2 * blocks + 4 * attention) : 0,
          .bytes = tokens * bytes};
}

}  // namespace tessera::train
