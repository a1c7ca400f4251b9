// The command line of recommend, checked.
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
  bool all = false;             // also what the user had in training
  std::string device = "auto";  // cpu, cuda, or auto: CUDA where a GPU is usable
  int threads = 0;
};

struct RecommendCommandLine {
  RecommendOptions options;
  std::string help;  // not empty: only to be printed
};

/// Throws InputError, one line, for what cannot be done as asked.
RecommendCommandLine parse_recommend_command_line(int argc, const char* const* argv);

}  // namespace tessera::apps
