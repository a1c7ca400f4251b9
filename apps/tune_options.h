// The command line of tune, complete and checked.
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
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be measured as asked.
TuneCommandLine parse_tune_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
