// What a stage would mean for a GPT, before it is built: bytes, the largest model that fits, the
// time of a step.
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
  /// All of the run but the parameters and the stage.
  optim::PlanInput run;
  std::vector<int> stages;                   // to be planned
  std::optional<int64_t> memory;             // of a rank, in bytes: which model fits it?
  std::optional<optim::MachineRates> rates;  // how long does a step take?
};

/// A model like that of the input, but for the number of its layers. No layers: none fits.
struct LargestModel {
  int64_t layers = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;      // of rank 0
  bool at_limit = false;  // of what is planned: larger ones may fit too
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
