// What zero_plan computes for one stage: bytes, the largest model that fits, the time of a step.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/support/plan_options.h"
#include "optim/plan/plan.h"
#include "optim/plan/step_time.h"

namespace tessera::apps {

/// A model like that of the options, but for the number of its layers. No layers: none fits.
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

std::vector<StagePlan> plan_stages(const PlanOptions& options);

/// The most layers whose plan for rank 0 is at most `memory` bytes.
LargestModel largest_model(const PlanOptions& options, int stage, int64_t memory);

}  // namespace tessera::apps
