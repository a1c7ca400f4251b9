// Plans ZeRO stages for a GPT without building the model: bytes, the largest model that fits, and
// the time of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "models/gpt/gpt.h"
#include "optim/plan/plan.h"
#include "optim/plan/step_time.h"

namespace tessera::train {

struct StagesInput {
  models::GptConfig model;
  DType dtype = DType::f32;  // of the parameters
  /// The input of the plans. Its parameters and stage are ignored, because `model`, `dtype` and
  /// `stages` determine them.
  optim::PlanInput run;
  bool evaluates = true;                     // the run has evaluations, which need workspace
  std::vector<int> stages;                   // the stages to plan
  std::optional<int64_t> memory;             // bytes per rank; needed for StagePlan::largest
  std::optional<optim::MachineRates> rates;  // rates of a rank; needed for StagePlan::time
};

/// The largest model that differs from the input's model only in the number of layers. `layers` is
/// 0 if even one layer does not fit.
struct LargestModel {
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;      // peak of rank 0
  bool at_limit = false;  // true if more layers were not tried, although they may fit
};

struct StagePlan {
  int stage = 0;
  optim::Plan plan = {};  // plan of rank 0
  std::optional<LargestModel> largest;
  std::optional<optim::StepTime> time;
};

std::vector<StagePlan> plan_stages(const StagesInput& stages);

/// Searches for the largest number of layers with which rank 0's peak is at most `memory` bytes. A
/// model whose bytes exceed int64 does not fit. Other errors of optim::plan are thrown.
LargestModel largest_model(const StagesInput& stages, int stage, int64_t memory);

}  // namespace tessera::train
