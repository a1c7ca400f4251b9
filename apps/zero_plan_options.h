// Parses and checks the command line of zero_plan. Flags that are not given take defaults. The
// preset decides the defaults of the model, the batches and the buckets.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "apps/cli/model_options.h"
#include "train/plan/plan_device.h"
#include "train/plan/plan_stage.h"

namespace tessera::apps {

/// An embedding table to plan in place of a GPT.
struct TableOptions {
  int64_t rows = 0;
  int64_t width = 0;
  int64_t lookups = 0;  // rows that a micro-batch looks up, repeated rows included
  double zipf = 0;      // exponent of the distribution of the lookups; 0: uniform
};

struct PlanOptions : train::StagesInput {
  std::string name;  // the model's preset, else layers and width, such as "gpt-2x128"
  std::string optimizer;
  train::PlanDevice device;
  std::optional<TableOptions> table = std::nullopt;
  int64_t ranks_per_node = 1;
  int threads = 0;            // per rank; 0: as many as train_gpt uses
  bool idle_offload = false;  // true: --offload has no effect, because the device is a CPU
  std::string json;           // a file; "-": standard output, without text tables; empty: none
};

struct PlanCommandLine {
  PlanOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if a flag is invalid.
PlanCommandLine parse_plan_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
