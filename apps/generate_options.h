// The command line of generate, checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/sample.h"

namespace tessera::apps {

struct GenerateOptions {
  std::string model;  // FILE.safetensors with config.json beside it
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_tokens;
  train::SampleOptions sample;
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where a GPU is usable
  int threads = 0;
};

struct GenerateCommandLine {
  GenerateOptions options;
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be done as asked.
GenerateCommandLine parse_generate_command_line(int argc, const char* const* argv);

/// The tokens that the model sees first. Throws InputError for text with a model that is not one of
/// bytes.
std::vector<int32_t> prompt_tokens(const GenerateOptions& options, const models::GptConfig& config);

}  // namespace tessera::apps
