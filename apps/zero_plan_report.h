// The results of zero_plan, as text tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include "apps/zero_plan_options.h"
#include "core/text/json_line.h"
#include "train/plan/plan_stage.h"

namespace tessera::apps {

std::string plan_text(const PlanOptions& options, const std::vector<train::StagePlan>& plans);
JsonObject plan_json(const PlanOptions& options, const std::vector<train::StagePlan>& plans);

}  // namespace tessera::apps
