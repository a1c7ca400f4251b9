// The command line of train_gpt, complete and checked: what was not given has the preset's default.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/run_options.h"
#include "models/gpt/gpt.h"

namespace tessera::apps {

struct TrainOptions : RunOptions {
  std::string val_data;  // empty: the last 10 % of data
  std::string preset;    // whose defaults are taken
  std::string name;      // of the model: a preset's, or that of other sizes
  models::GptConfig model;
  int64_t eval_batches = 20;  // 0: the whole validation part
  int64_t sample = 0;
};

/// What a command line asks for: training, or, where `help` is not empty, only to print it.
struct CommandLine {
  TrainOptions options;
  std::string help;
  dist::Settings settings;  // for ranks to compare
};

/// Throws InputError, one line, for what cannot be done as asked.
CommandLine parse_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
