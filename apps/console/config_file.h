// A file of flags. The flag --config names the file:
//
//   # a comment, on a line of its own or after a value
//   steps = 500
//   preset = "nano"                  # quotes are optional
//   recompute = true
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

struct ConfigLine {
  std::string where;  // "run.cfg:3"
  std::string name;   // "steps"
  std::string value;  // without quotes
};

/// Reads a file of flags. Throws InputError with file and line if a line has a NUL byte, or is
/// neither `NAME = VALUE`, nor empty, nor a comment.
std::vector<ConfigLine> read_config(const std::string& path);

}  // namespace tessera::apps
