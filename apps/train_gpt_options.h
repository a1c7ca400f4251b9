// Parses and checks the command line of train_gpt. The preset gives the defaults of the model's
// sizes and of the hyper-parameters.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/run_options.h"
#include "models/gpt/gpt.h"

namespace tessera::apps {

struct TrainOptions : RunOptions {
  std::string val_data;  // empty: the last 10 % of `data`
  std::string preset;    // gives the defaults of sizes and hyper-parameters
  /// The model's name in the log: the name of the preset that has the sizes of `model`. If there is
  /// no such preset, a name such as "gpt-2x128".
  std::string name;
  models::GptConfig model;
  int64_t eval_batches = 20;  // 0: the whole validation part
  int64_t sample = 0;
  bool tune = true;  // on CUDA: measure algorithms (choose_algorithms in train_gpt.cpp says when)
};

/// A parsed command line. If `help` is not empty, the program prints it and ends.
struct CommandLine {
  TrainOptions options;
  std::string help;
  dist::Settings settings;  // for ranks to compare
};

/// Throws InputError, with a one-line message, if a flag is invalid or missing.
CommandLine parse_command_line(int argc, const char* const* argv);

/// Returns what the model and its defaults take from the files of --init, for ranks to compare. The
/// digest of the weights is not enough, because the number of heads and the epsilon of the norms
/// are in config.json, and each rank reads its own. The other sizes follow from flags and weights.
dist::Settings init_settings(const TrainOptions& options);

}  // namespace tessera::apps
