// Plans of ZeRO stages for a GPT that is not built: bytes, largest model that fits, step time.
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
  DType dtype = DType::f32;  // of its parameters
  /// The run, without its parameters and stage.
  optim::PlanInput run;
  std::vector<int> stages;                   // to be planned
  std::optional<int64_t> memory;             // bytes of a rank that the largest model may take
  std::optional<optim::MachineRates> rates;  // how fast the machine is, for the time of a step
};

/// The input's model with another number of layers; 0 layers if none fits.
struct LargestModel {
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;      // of rank 0
  bool at_limit = false;  // the search has ended at its limit: larger models may fit too
};

struct StagePlan {
  int stage = 0;
  optim::Plan plan = {};  // of rank 0
  std::optional<LargestModel> largest;
  std::optional<optim::StepTime> time;
};

std::vector<StagePlan> plan_stages(const StagesInput& stages);

/// The most layers whose plan for rank 0 is at most `memory` bytes.
LargestModel largest_model(const StagesInput& stages, int stage, int64_t memory);

}  // namespace tessera::train
