// Checks the files that a command line names. An output must not overwrite an input, unless
// GivenPath::may_replace names this input. Two outputs must not be the same file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera::apps {

struct GivenPath {
  const char* flag;  // "--log"
  std::string path;  // empty: not given
  /// The flag of an input that this output may replace; nullptr: none.
  const char* may_replace = nullptr;
  bool is_log = false;  // the run's log, which may replace or continue another log
};

/// Weights that --save-every and --save-best write, in folders beside the file of --save
/// (train/weight_saves.h).
struct GivenSaves {
  std::string file = {};                 // the file of --save; empty: not given
  std::vector<std::string> others = {};  // names of other files in each folder of weights
  int64_t every = 0;                     // --save-every; 0: not given
  bool best = false;                     // --save-best
  std::string checkpoints = {};          // the folder of --checkpoint
};

struct GivenPaths {
  std::vector<GivenPath> inputs;  // files, or folders of data files
  std::vector<GivenPath> outputs;
  GivenSaves saves = {};
};

/// Returns the absolute path of a file, which need not exist. Follows symbolic links, even if their
/// target does not exist.
std::filesystem::path future_name(const std::string& path);

/// Throws InputError, naming the flags, in these cases:
///
///   - an output is an input that it may not replace, a data file in an input folder, or another
///     output;
///   - an output is directly in an input folder and has a name that readers take for data, such as
///     ratings.csv;
///   - an output is the existing log of a run, and is not itself given as a log;
///   - an output is "-", which does not stand for standard output here;
///   - an output is the file that standard output or standard error is redirected to;
///   - an output is a checkpoint or in a checkpoint, which the output would damage;
///   - an output is the lock of a folder of checkpoints;
///   - an output, or a folder that contains it, has the name of an unfinished checkpoint, or is
///     where --checkpoint, or a run that has checkpoints in the same folder, may write a
///     checkpoint;
///   - a save during the run would replace an input, a data file in an input folder, or another
///     output;
///   - an output has the path of a folder in which a save during the run is written;
///   - the saves of --save-every would be in the folder of --checkpoint or beside a checkpoint.
///
/// Existing files are compared by device and inode, so that two links to one file count as equal.
/// Files that do not exist yet are compared by name. Devices such as /dev/null may be named more
/// than once. The only files that this function opens are existing outputs, to find out if they are
/// logs.
void check_paths(const GivenPaths& paths);
/// Throws InputError if `path`, or a folder that contains it, is a checkpoint or has the name of an
/// unfinished checkpoint. Also throws if `path` is the lock of a folder of checkpoints. `path` need
/// not exist. `flag` names the output in the error.
void check_outside_checkpoints(const std::string& flag, const std::string& path);
/// Throws InputError if `path` is "-", which many programs take for standard output.
void check_not_a_dash(const std::string& flag, const std::string& path);
/// Throws InputError if `path` cannot be a folder of checkpoints, because readers would take it for
/// a single checkpoint. This is so if `path` has the name of a checkpoint, such as step-000000500,
/// or is a checkpoint whose folder was renamed. `flag` names the folder in the error.
void check_checkpoint_folder(const std::string& flag, const std::string& path);
/// Throws InputError if `weights`, a path from which weights are to be read, is a checkpoint, a
/// folder of checkpoints, or the manifest or a shard of a checkpoint. Accepts every folder that has
/// model.safetensors. The error ends with `advice`; if this is empty, with the command that exports
/// the weights.
void check_not_a_checkpoint(const std::string& weights, const std::string& advice = "");
/// Throws InputError as check_outside_checkpoints does, and if `path`, or a folder that contains
/// it, has the name of a checkpoint and is beside checkpoints. Also throws InputError if `path` is
/// "-", if it is the log of a run or a file to which standard output or standard error is
/// redirected, or if no file can be written to `path`. For programs with a single output.
void check_output_path(const std::string& flag, const std::string& path);
/// Throws InputError if no file can be written to `save`, the file of --save. Throws InputError,
/// naming --save-best, if the best weights could not be written to their folder beside that file.
/// Leaves no new folder behind.
void check_save_best(const std::string& save);

}  // namespace tessera::apps
