// Parses and checks the command line of `tune`.
#pragma once

#include <cstdint>
#include <string>

#include "apps/cli/model_options.h"

namespace tessera::apps {

struct TuneOptions {
  models::GptConfig model;
  int64_t micro_batch = 0;
  DType dtype = DType::f32;
  std::string out;
};

struct TuneCommandLine {
  TuneOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if a flag is invalid.
TuneCommandLine parse_tune_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
