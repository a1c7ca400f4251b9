#include "apps/cli/paths.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <memory>
#include <string_view>

#include "apps/console/shell_word.h"
#include "core/error.h"
#include "core/text/input_file.h"
#include "core/text/lower_case.h"
#include "core/text/output_file.h"
#include "data/file_names.h"
#include "train/checkpoint/checkpoint.h"
#include "train/report/log_reader.h"
#include "train/weight_saves.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

bool same_file(const std::string& a, const std::string& b) {
  struct stat of_a{};
  struct stat of_b{};
  const bool has_a = ::stat(a.c_str(), &of_a) == 0;
  const bool has_b = ::stat(b.c_str(), &of_b) == 0;
  if (has_a != has_b) return false;
  if (!has_a) return future_name(a) == future_name(b);
  // Devices such as /dev/null may be named twice: writing to them overwrites nothing.
  if (!S_ISREG(of_a.st_mode) && !S_ISDIR(of_a.st_mode)) return false;
  return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
}

// True if `path` is an existing file in or below `folder`, and its name is that of a rating file or
// ends like a data file's. Other files of the folder, such as logs and weights of earlier runs, may
// be replaced.
bool is_data_of(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::is_regular_file(path, error)) return false;
  const fs::path within = fs::canonical(folder, error);
  const fs::path relative = fs::canonical(path, error).lexically_relative(within);
  if (relative.empty() || *relative.begin() == "..") return false;
  const std::string name = lower_case(relative.filename().string());
  if (data::names_rating_file(name)) return true;
  constexpr std::array ends = {".bin", ".txt", "-ubyte", ".gz", ".jpg", ".jpeg", ".png"};
  return std::ranges::any_of(ends, [&](const char* end) { return name.ends_with(end); });
}

// True if `path` is directly in the existing folder `folder`, under a name that readers of folders
// take for data. Such a new file would change the data, or make the folder unreadable.
bool has_data_name(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error)) return false;
  const fs::path name = future_name(path);
  if (!same_file(name.parent_path().string(), folder)) return false;
  const std::string file = name.filename().string();
  return data::names_rating_file(file) || data::names_image_data(file);
}

// Refuses an output file to which standard output or standard error is redirected. The program and
// the stream would write at separate offsets and overwrite each other.
void check_streams(const GivenPath& output) {
  struct stat file {};
  if (::stat(output.path.c_str(), &file) != 0 || !S_ISREG(file.st_mode)) return;
  for (const int stream : {STDOUT_FILENO, STDERR_FILENO}) {
    struct stat of_stream {};
    if (::fstat(stream, &of_stream) != 0) continue;
    if (of_stream.st_dev == file.st_dev && of_stream.st_ino == file.st_ino) {
      fail_input("{} {} is the file to which {} is redirected", output.flag, output.path,
                 stream == STDOUT_FILENO ? "standard output" : "standard error");
    }
  }
}

// Returns the step in the name of a folder of saves, such as step-000000500; 0 for other names.
int64_t step_of_folder(const fs::path& folder) {
  constexpr std::string_view begin = "step-";
  const std::string name = folder.filename().string();
  if (!name.starts_with(begin)) return 0;
  int64_t step = 0;
  std::from_chars(name.data() + begin.size(), name.data() + name.size(), step);
  return name == train::checkpoint_name(step) ? step : 0;
}

// Returns the files that --save-best would write, and the files of some saves of --save-every. A
// run may have too many saves of --save-every to list them all, so a save is included only in two
// cases: if a path on the command line, or its parent folder, has the name of the save's folder,
// such as step-000000500; or if the save would replace a data file in an input folder.
std::vector<GivenPath> files_of_saves(const GivenPaths& paths) {
  const auto& [file, others, every, best, checkpoints] = paths.saves;
  std::vector<std::string> folders;
  const auto add_step = [&](const fs::path& folder) {
    const int64_t step = step_of_folder(folder);
    if (step > 0 && step % every == 0) folders.push_back(folder.filename().string());
  };
  for (const auto* list : {&paths.inputs, &paths.outputs}) {
    for (const GivenPath& given : *list) {
      if (given.path.empty() || every == 0) continue;
      const fs::path name = future_name(given.path);
      add_step(name);
      add_step(name.parent_path());
    }
  }
  std::vector<GivenPath> files;
  const fs::path beside = fs::path(file).parent_path();
  const auto replaces_data = [&](const fs::path& folder) {
    const std::string save = (folder / fs::path(file).filename()).string();
    return std::ranges::any_of(
        paths.inputs, [&](const GivenPath& input) { return is_data_of(save, input.path); });
  };
  if (every > 0) {
    for (const int64_t step : train::steps_of_names(beside.empty() ? "." : beside.string())) {
      const fs::path folder = beside / train::checkpoint_name(step);
      if (replaces_data(folder)) add_step(folder);
    }
  }
  const auto add_files = [&](const char* flag, const std::string& folder) {
    files.push_back({flag, (beside / folder / fs::path(file).filename()).string()});
    for (const std::string& other : others) {
      files.push_back({flag, (beside / folder / other).string()});
    }
  };
  if (best) add_files("--save-best", "best");
  std::ranges::sort(folders);
  const auto repeated = std::ranges::unique(folders);
  folders.erase(repeated.begin(), repeated.end());
  for (const std::string& folder : folders) add_files("--save-every", folder);
  return files;
}

// Refuses an output at the path of a folder in which one of the `saves` would be, such as out/best.
// If the output is a file, the folder could not be made. If the output is a folder, its files would
// mix with those of the save.
void check_folders_of_saves(const std::vector<GivenPath>& outputs,
                            const std::vector<GivenPath>& saves) {
  for (const GivenPath& save : saves) {
    const std::string folder = fs::path(save.path).parent_path().string();
    for (const GivenPath& output : outputs) {
      if (output.path.empty() || !same_file(output.path, folder)) continue;
      fail_input("{} {} is the folder in which {} writes; give another path", output.flag,
                 output.path, save.flag);
    }
  }
}

// In a folder without the name of a checkpoint, a manifest alone is not enough, because other
// programs also write files with the manifest's name.
bool is_checkpoint(const fs::path& folder) {
  return train::has_manifest(folder.string()) &&
         (train::names_checkpoint(folder.string()) || train::has_shard(folder.string()));
}

// True if `path` is the manifest or a shard of a checkpoint.
bool is_part_of_checkpoint(const std::string& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const fs::path full = fs::absolute(path, error);
  const std::string name = full.filename().string();
  return (name == train::manifest_name || train::is_shard_name(name)) &&
         is_checkpoint(full.parent_path());
}

// Returns the path and the folders that contain it, up to the root, which is left out.
std::vector<fs::path> with_parents(const fs::path& path) {
  std::vector<fs::path> paths;
  for (fs::path at = path; at.has_relative_path(); at = at.parent_path()) paths.push_back(at);
  return paths;
}

// Refuses --save-every if its saves would be in the folder of --checkpoint, or beside existing
// checkpoints. Saves and checkpoints have folders of the same names, step-..., so a save and a
// checkpoint of the same step would need the same folder.
void check_step_folders(const GivenSaves& saves) {
  if (saves.every == 0 || saves.file.empty()) return;
  const fs::path parent = fs::path(saves.file).parent_path();
  const std::string beside = parent.empty() ? "." : parent.string();
  for (const int64_t step : train::checkpoint_steps(beside)) {
    const fs::path folder = fs::path(beside) / train::checkpoint_name(step);
    if (!is_checkpoint(folder)) continue;
    fail_input(
        "--save-every writes folders step-... in {}, and {} there is a checkpoint; give --save "
        "another folder",
        beside, folder.filename().string());
  }
  if (saves.checkpoints.empty() || !same_file(beside, saves.checkpoints)) return;
  fail_input(
      "--save-every writes folders step-... in {}, and --checkpoint {} writes folders of the same "
      "names there; give one of them another folder",
      beside, saves.checkpoints);
}

// True if `name` is the lock file of a folder of checkpoints, whether or not a run holds the lock
// now. If the folder has no checkpoints, an empty file with a lock file's name counts too: it may
// belong to a run that has not written a checkpoint yet.
bool is_lock(const fs::path& name) {
  if (name.filename() != train::lock_name) return false;
  std::error_code error;
  const bool is_empty = fs::is_regular_file(name, error) && fs::file_size(name, error) == 0;
  return is_empty || !train::checkpoint_steps(name.parent_path().string()).empty();
}

// Refuses an output that is the lock of the folder of --checkpoint, or is where --checkpoint may
// write a checkpoint. The folder need not exist.
void check_own_folder(const GivenPath& output, const std::string& checkpoints) {
  if (checkpoints.empty()) return;
  if (same_file(output.path, (fs::path(checkpoints) / train::lock_name).string())) {
    fail_input("{} {} is the lock of the folder of --checkpoint; give another name", output.flag,
               output.path);
  }
  for (const fs::path& folder : with_parents(future_name(output.path))) {
    if (!train::names_checkpoint(folder.string())) continue;
    if (!same_file(folder.parent_path().string(), checkpoints)) continue;
    fail_input("{} {} is where --checkpoint writes a checkpoint; give another name", output.flag,
               output.path);
  }
}

// Refuses an output in a folder with checkpoints if a later checkpoint may get its name. A run
// could not write this checkpoint, and would be refused when it resumes.
void check_name_is_free(const std::string& flag, const std::string& path) {
  for (const fs::path& folder : with_parents(future_name(path))) {
    if (!train::names_checkpoint(folder.string())) continue;
    const fs::path around = folder.parent_path();
    for (const int64_t step : train::checkpoint_steps(around.string())) {
      if (!is_checkpoint(around / train::checkpoint_name(step))) continue;
      fail_input(
          "{} {} may be where a run with its checkpoints in {} writes one; give another name", flag,
          path, around.string());
    }
  }
}

void refuse_log(const std::string& flag, const std::string& path) {
  if (!train::is_log(path)) return;
  fail_input("{} {} is the log of a run, and would be overwritten; give another name", flag, path);
}

}  // namespace

fs::path future_name(const std::string& path) {
  std::error_code error;
  fs::path name = fs::absolute(path, error);
  constexpr int most_links = 40;  // the kernel's limit
  for (int i = 0; i < most_links && fs::is_symlink(name, error); ++i) {
    name = name.parent_path() / fs::read_symlink(name, error);
  }
  const fs::path resolved = fs::weakly_canonical(name, error);
  if (error) return name;
  return resolved.has_filename() ? resolved : resolved.parent_path();  // a/b/ becomes a/b
}

void check_outside_checkpoints(const std::string& flag, const std::string& path) {
  const fs::path name = future_name(path);
  for (const fs::path& folder : with_parents(name)) {
    if (train::names_partial_checkpoint(folder.string())) {
      fail_input("{} {} would be removed as an unfinished checkpoint, because of the name {}; give "
                 "another path",
                 flag, path, folder.filename().string());
    }
    if (!is_checkpoint(folder)) continue;
    fail_input("{} {} is {}the checkpoint {}, which would be damaged; give a path outside of it",
               flag, path, folder == name ? "" : "in ", folder.string());
  }
  if (is_lock(name)) {
    fail_input("{} {} is the lock of the checkpoints in {}; give another name", flag, path,
               name.parent_path().string());
  }
}

void check_not_a_dash(const std::string& flag, const std::string& path) {
  if (path != "-") return;
  fail_input("{} -: nothing is written to standard output; name a file or folder, such as ./-",
             flag);
}

void check_checkpoint_folder(const std::string& flag, const std::string& path) {
  if (!train::names_checkpoint(path)) {
    const std::string real = future_name(path).string();
    // Accepts a link to a checkpoint: check_paths() refuses the link, with a better message.
    if (!train::has_manifest(path) || train::names_checkpoint(real)) return;
    fail_input("{0} {1} is a checkpoint whose folder was renamed; give {0} another folder", flag,
               path);
  }
  if (!train::has_manifest(path)) {
    fail_input("{} {} has the name of a single checkpoint; give the folder another name", flag,
               path);
  }
  const fs::path name = (fs::path(path) / "").lexically_normal().parent_path();
  const std::string above = name.parent_path().string();
  fail_input("{0} {1} is a single checkpoint; give {0} {2}, or --resume {3}", flag, path,
             shell_word(above.empty() ? "." : above), shell_word(path));
}

void check_not_a_checkpoint(const std::string& weights, const std::string& advice) {
  const auto refuse = [&](const std::string& what, const std::string& checkpoint) {
    fail_input("{} is a {}, expected weights; {}", weights, what,
               !advice.empty() ? advice
                               : fmt::format("write its weights to a file: checkpoint export {} "
                                             "model.safetensors",
                                             shell_word(checkpoint)));
  };
  if (is_part_of_checkpoint(weights)) {
    const std::string folder = fs::path(weights).parent_path().string();
    refuse("file of a checkpoint", folder.empty() ? "." : folder);
  }
  std::error_code error;
  if (!fs::is_directory(weights, error)) return;
  if (has_name((fs::path(weights) / "model.safetensors").string())) return;
  const bool is_single = is_checkpoint(weights);
  const bool has_checkpoints =
      !is_single && std::ranges::any_of(train::checkpoint_steps(weights), [&](int64_t step) {
        return is_checkpoint(fs::path(weights) / train::checkpoint_name(step));
      });
  if (is_single) refuse("checkpoint", weights);
  if (has_checkpoints) refuse("folder of checkpoints", weights);
}

void check_output_path(const std::string& flag, const std::string& path) {
  check_not_a_dash(flag, path);
  check_streams({flag.c_str(), path});
  refuse_log(flag, path);
  check_outside_checkpoints(flag, path);
  check_name_is_free(flag, path);
  check_writable(path);
}

void check_save_best(const std::string& save) {
  check_writable(save);
  const std::string path = train::best_weights_path(save);
  const fs::path folder = fs::path(path).parent_path();
  std::error_code error;
  const bool is_new = fs::create_directory(folder, error);
  if (error) {
    fail_with_reason(error.value(),
                     fmt::format("--save-best: the folder {} cannot be made", folder.string()));
  }
  const std::shared_ptr<void> at_end(nullptr, [&](void*) {
    if (is_new) fs::remove(folder, error);  // the run may still be refused
  });
  try {
    check_writable(path);
  } catch (const InputError& unwritable) {
    fail_input("--save-best: {}", unwritable.what());
  }
}

void check_paths(const GivenPaths& given) {
  GivenPaths paths = given;
  check_step_folders(given.saves);
  if (!given.saves.file.empty()) {
    const std::vector<GivenPath> files = files_of_saves(given);
    check_folders_of_saves(given.outputs, files);
    paths.outputs.insert(paths.outputs.end(), files.begin(), files.end());
  }
  for (size_t i = 0; i < paths.outputs.size(); ++i) {
    const auto& [flag, path, may_replace, is_log] = paths.outputs[i];
    if (path.empty()) continue;
    check_not_a_dash(flag, path);
    check_streams(paths.outputs[i]);
    check_outside_checkpoints(flag, path);
    check_own_folder(paths.outputs[i], given.saves.checkpoints);
    check_name_is_free(flag, path);
    for (const GivenPath& input : paths.inputs) {
      const bool replaces = may_replace != nullptr && std::string_view(may_replace) == input.flag;
      if (input.path.empty() || replaces) continue;
      if (same_file(path, input.path)) {
        fail_input("{} {} is what {} reads, and would be overwritten", flag, path, input.flag);
      }
      if (is_data_of(path, input.path)) {
        fail_input("{} {} is a data file in the folder that {} reads, and would be overwritten",
                   flag, path, input.flag);
      }
      if (has_data_name(path, input.path)) {
        fail_input("{} {} has the name of a data file, and is in the folder that {} reads; give "
                   "another name",
                   flag, path, input.flag);
      }
    }
    for (size_t j = 0; j < i; ++j) {
      const GivenPath& other = paths.outputs[j];
      if (!other.path.empty() && same_file(path, other.path)) {
        fail_input("{} and {} would write the same file, {}", other.flag, flag, path);
      }
    }
    if (!is_log) refuse_log(flag, path);
  }
}

}  // namespace tessera::apps
