// The command line of zero_plan, complete and checked: what was not given has the preset's default.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "apps/support/model_options.h"
#include "apps/support/plan_device.h"
#include "models/gpt/gpt.h"
#include "optim/plan/plan_input.h"
#include "optim/plan/step_time.h"

namespace tessera::apps {

struct PlanOptions {
  std::string preset;
  models::GptConfig model;
  DType dtype = DType::f32;
  std::string optimizer;
  PlanDevice device;
  /// All of the run but the parameters and the stage.
  optim::PlanInput run;

  std::vector<int> stages;  // to be planned
  int64_t ranks_per_node = 1;
  int threads = 0;  // of a rank, as train_gpt's
  std::optional<int64_t> memory;              // of a rank: which model fits it?
  std::optional<optim::MachineRates> rates;   // how long does a step take?
  std::string json;  // a file, or - for standard output in place of tables; empty: none
};

struct PlanCommandLine {
  PlanOptions options;
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be planned as asked.
PlanCommandLine parse_plan_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
