// Parses and checks the command line of `predict`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::apps {

struct PredictOptions {
  std::string model;                // FILE.safetensors
  std::vector<std::string> images;  // JPEG or PNG
  int64_t top = 5;
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where a GPU is usable
  int threads = 0;              // 0: OMP_NUM_THREADS if it is set, or all cores
};

struct PredictCommandLine {
  PredictOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if an argument or a flag is missing or invalid.
PredictCommandLine parse_predict_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
