// The files that a command line names: none that is read may be written, and none be written twice.
#pragma once

#include <string>
#include <vector>

namespace tessera::apps {

struct GivenPath {
  const char* flag;  // "--log"
  std::string path;  // empty: not given
  /// The flag of an input that this output may replace; none where it may replace no input.
  const char* may_replace = nullptr;
};

struct GivenPaths {
  std::vector<GivenPath> inputs;  // files, or folders with the data files in them
  std::vector<GivenPath> outputs;
};

/// Throws InputError, naming both flags, where an output is an input or another output: by device
/// and inode where both are there, so through links too, else by their names. So too where it is
/// the file that standard output or error goes to. Nothing is opened.
void check_paths(const GivenPaths& paths);

}  // namespace tessera::apps
