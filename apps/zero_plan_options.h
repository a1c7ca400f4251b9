// The command line of zero_plan, complete and checked: what was not given has the preset's default.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/model_options.h"
#include "train/plan/plan_device.h"
#include "train/plan/plan_stage.h"

namespace tessera::apps {

struct PlanOptions : train::StagesInput {
  std::string name;  // the preset, or that of a model of other sizes
  std::string optimizer;
  train::PlanDevice device;
  int64_t ranks_per_node = 1;
  int threads = 0;   // of a rank, as train_gpt's
  std::string json;  // a file, or - for standard output in place of tables; empty: none
};

struct PlanCommandLine {
  PlanOptions options;
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be planned as asked.
PlanCommandLine parse_plan_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
