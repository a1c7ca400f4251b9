// The files that a command line names: none that is read may be written, and none be written twice.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::apps {

struct GivenPath {
  const char* flag;  // "--log"
  std::string path;  // empty: not given
  /// The flag of an input that this output may replace; none where it may replace no input.
  const char* may_replace = nullptr;
};

/// Weights that are saved in steps, in folders beside their file (train/weight_saves.h).
struct GivenSaves {
  std::string file = {};                 // that --save names
  std::vector<std::string> others = {};  // names of files that are written beside it
  int64_t every = 0;                     // --save-every; 0: not given
  bool best = false;                     // --save-best
  std::string checkpoints = {};          // the folder of --checkpoint
};

struct GivenPaths {
  std::vector<GivenPath> inputs;  // files, or folders with the data files in them
  std::vector<GivenPath> outputs;
  GivenSaves saves = {};
};

/// Throws InputError, naming both flags, where an output is an input or another output: by device
/// and inode where both are there, so through links too, else by their names. So too where it is
/// the file that standard output or error goes to. Weights that are saved in steps may replace no
/// input, and their folders must not be among those of checkpoints. Nothing is opened.
void check_paths(const GivenPaths& paths);

}  // namespace tessera::apps
