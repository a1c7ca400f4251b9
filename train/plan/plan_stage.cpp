#include "train/plan/plan_stage.h"

#include <algorithm>

#include "optim/plan/checked_int.h"
#include "train/plan/plan_gpt.h"

namespace tessera::train {
namespace {

constexpr int64_t most_layers = models::GptLimits::layers;  // largest_model tries at most this many

optim::PlanInput input_for(const StagesInput& stages, const models::GptConfig& model, int stage) {
  optim::PlanInput input = stages.run;
  input.parameters = gpt_parameters(model, stages.dtype);
  input.stage = stage;
  return input;
}

optim::Plan plan_rank(const StagesInput& stages, const models::GptConfig& model,
                      const optim::PlanInput& input) {
  optim::Plan plan = optim::plan(input, 0);
  add_activations(plan, model, stages.dtype, input.batch.micro, input.device);
  if (stages.evaluates) {
    add_evaluation(plan, model, stages.dtype, input.batch.micro, input.device);
  }
  return plan;
}

}  // namespace

LargestModel largest_model(const StagesInput& stages, int stage, int64_t memory) {
  LargestModel largest;
  const auto fits = [&](int64_t layers) {
    models::GptConfig model = stages.model;
    model.layers = layers;
    const optim::PlanInput input = input_for(stages, model, stage);
    int64_t bytes = 0;
    try {
      bytes = plan_rank(stages, model, input).peak();
    } catch (const optim::TooLargeError&) {
      return false;  // the number of bytes exceeds int64
    }
    if (bytes > memory) return false;
    largest = {layers, parameter_elements(input.parameters), bytes, layers == most_layers};
    return true;
  };
  // The first loop doubles the number of layers as long as the model fits. The second loop bisects.
  int64_t below = 0;  // the most layers that are known to fit
  int64_t above = 1;  // the next number to try; in the second loop, a number that is too large
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

std::vector<StagePlan> plan_stages(const StagesInput& stages) {
  const optim::MicroBatchWork work = gpt_work(stages.model, stages.run.batch.micro, stages.dtype);
  std::vector<StagePlan> plans;
  for (const int stage : stages.stages) {
    const optim::PlanInput input = input_for(stages, stages.model, stage);
    StagePlan plan{
        .stage = stage, .plan = plan_rank(stages, stages.model, input), .largest = {}, .time = {}};
    if (stages.memory) plan.largest = largest_model(stages, stage, *stages.memory);
    if (stages.rates) plan.time = optim::step_time(input, work, *stages.rates);
    plans.push_back(plan);
  }
  return plans;
}

}  // namespace tessera::train
