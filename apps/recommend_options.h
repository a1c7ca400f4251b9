// Parses and checks the command line of `recommend`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::apps {

struct RecommendOptions {
  std::string model;               // FILE.safetensors
  std::vector<std::string> users;  // ids
  std::string items;               // a file with titles
  int64_t top = 10;
  bool all = false;             // include items that the user has in the training data
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where a GPU is usable
  int threads = 0;
};

struct RecommendCommandLine {
  RecommendOptions options;
  std::string help;  // if not empty: print this text and exit
};

/// Throws InputError, with a one-line message, if an argument or a flag is missing or invalid.
RecommendCommandLine parse_recommend_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
