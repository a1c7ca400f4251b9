// zero_plan's answers, as tables and as JSON.
#pragma once

#include <string>
#include <vector>

#include "apps/support/json_line.h"
#include "apps/support/plan_stage.h"

namespace tessera::apps {

std::string plan_text(const PlanOptions& options, const std::vector<StagePlan>& plans);
JsonObject plan_json(const PlanOptions& options, const std::vector<StagePlan>& plans);

}  // namespace tessera::apps
