// What a run will hold and send, for people to read: for each stage and several numbers of ranks.
#pragma once

#include <string>

#include "apps/support/train_options.h"
#include "models/gpt.h"
#include "optim/plan.h"

namespace tessera::apps {

optim::PlanInput plan_input(const TrainOptions& options, const models::Gpt& model, int64_t ranks,
                            int stage);

/// Memory and traffic of rank 0, which holds as much as any and sends the most.
std::string plan_table(const TrainOptions& options, const models::Gpt& model, int64_t ranks);

/// 1234567 -> "1,234,567"
std::string grouped(int64_t number);

}  // namespace tessera::apps
