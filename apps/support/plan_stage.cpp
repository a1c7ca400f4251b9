#include "apps/support/plan_stage.h"

#include <algorithm>

#include "apps/support/plan_gpt.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

optim::PlanInput input_for(const PlanOptions& options, const models::GptConfig& model, int stage) {
  optim::PlanInput input = options.run;
  input.parameters = gpt_parameters(model, options.dtype);
  input.stage = stage;
  return input;
}

optim::Plan plan_rank(const PlanOptions& options, const models::GptConfig& model,
                      const optim::PlanInput& input) {
  optim::Plan plan = optim::plan(input, 0);
  add_activations(plan, model, options.dtype, input.batch.micro, input.device);
  return plan;
}

}  // namespace

LargestModel largest_model(const PlanOptions& options, int stage, int64_t memory) {
  LargestModel largest;
  const auto fits = [&](int64_t layers) {
    models::GptConfig model = options.model;
    model.layers = layers;
    const optim::PlanInput input = input_for(options, model, stage);
    int64_t bytes = 0;
    try {
      bytes = plan_rank(options, model, input).peak();
    } catch (const InputError&) {
      return false;  // more bytes than can be counted
    }
    if (bytes > memory) return false;
    largest = {layers, parameter_elements(input.parameters), bytes, layers == most_layers};
    return true;
  };
  int64_t below = 0;  // layers that fit
  int64_t above = 1;  // layers that do not
  while (above <= most_layers && fits(above)) {
    below = above;
    above = 2 * above;
  }
  above = std::min(above, most_layers + 1);
  while (above - below > 1) {
    const int64_t middle = below + (above - below) / 2;
    (fits(middle) ? below : above) = middle;
  }
  return largest;
}

std::vector<StagePlan> plan_stages(const PlanOptions& options) {
  const optim::MicroBatchWork work =
      gpt_work(options.model, options.run.batch.micro, options.dtype);
  std::vector<StagePlan> plans;
  for (const int stage : options.stages) {
    const optim::PlanInput input = input_for(options, options.model, stage);
    StagePlan plan{.stage = stage,
                   .plan = plan_rank(options, options.model, input),
                   .largest = {},
                   .time = {}};
    if (options.memory) plan.largest = largest_model(options, stage, *options.memory);
    if (options.rates) plan.time = optim::step_time(input, work, *options.rates);
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace tessera::apps
