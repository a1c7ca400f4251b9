// A file of flags, which --config names:
//
//   # a comment; lines without a name are empty but for one
//   steps = 500
//   preset = "nano"                  # quotes may stand, as in a shell
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

/// Throws InputError with file and line for a line that is no `NAME = VALUE`.
std::vector<ConfigLine> read_config(const std::string& path);

}  // namespace tessera::apps
