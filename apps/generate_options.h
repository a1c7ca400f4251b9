// Parses and checks the command line of `generate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "train/sample.h"

namespace tessera::apps {

struct GenerateOptions {
  std::string model;  // FILE.safetensors with config.json beside it, or the folder with both files
  std::optional<std::string> prompt;
  std::vector<int32_t> prompt_tokens;
  train::SampleOptions sample;
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where a GPU is usable
  int threads = 0;
};

struct GenerateCommandLine {
  GenerateOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if an argument or a flag is missing or invalid.
GenerateCommandLine parse_generate_command_line(int argc, const char* const* argv);

/// Returns the tokens of the prompt, or train::default_prompt if no prompt is given. Throws
/// InputError if --prompt is given and the model's vocabulary is not bytes.
std::vector<int32_t> prompt_tokens(const GenerateOptions& options, const models::GptConfig& config);

}  // namespace tessera::apps
