#include "apps/cli/class_folders.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "core/error.h"
#include "core/text/lower_case.h"
#include "data/images/formats/folder_images.h"
#include "train/weight_saves.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

struct Written {
  GivenPath output;  // as the error message names it
  fs::path file;     // the file to be written; if the output is a folder, a made-up file in it
};

std::vector<Written> written_by(const GivenPaths& paths) {
  std::vector<Written> written;
  const auto add = [&](const GivenPath& output, const fs::path& path) {
    written.push_back({output, future_name(path.string())});
    // An image may be a symbolic link to a file elsewhere. An output may replace the link itself,
    // so the path of the link is checked too.
    written.push_back({output, future_name(path.parent_path().string()) / path.filename()});
  };
  for (const GivenPath& output : paths.outputs) {
    if (output.path.empty()) continue;
    const std::string_view flag = output.flag;
    const bool is_folder = flag == "--tensorboard" || flag == "--checkpoint";
    add(output, fs::absolute(is_folder ? output.path + "/file" : output.path));
  }
  const auto& [save, others, every, best, checkpoints] = paths.saves;
  const auto add_save = [&](const char* flag, const std::string& path) {
    add({flag, path}, fs::absolute(path));
  };
  if (!save.empty() && best) add_save("--save-best", train::best_weights_path(save));
  if (!save.empty() && every > 0) add_save("--save-every", train::step_weights_path(save, every));
  return written;
}

// A folder below which images are read.
struct ReadFolder {
  fs::path path;
  std::ptrdiff_t depth;  // an output this number of levels below `path`, or deeper, is refused
  std::string parent;    // the folder of the class folders, as the error message names it
};

std::vector<ReadFolder> folders_read(const std::string& data,
                                     const std::vector<std::string>& class_parents) {
  std::vector<ReadFolder> folders;
  for (const std::string& parent : class_parents) {
    // A file directly in `data` is accepted, because only the folders of `data` are read. A file
    // directly in a part of the data set, such as val/, is refused. If val/ does not exist yet, an
    // output that makes its folder, such as --checkpoint, would create val/, and the next run would
    // look for validation images there. The rule depends neither on the output nor on whether val/
    // exists.
    folders.push_back({future_name(parent), parent == data ? 2 : 1, parent});
    std::error_code error;
    if (!fs::is_directory(parent, error)) continue;
    // Class folders may be symbolic links to folders anywhere.
    for (const std::string& name : data::folders_in(parent)) {
      const fs::path folder = fs::path(parent) / name;
      if (fs::is_symlink(folder, error)) {
        folders.push_back({future_name(folder.string()), 1, parent});
      }
    }
  }
  return folders;
}

// Returns how many levels `file` is below `folder`, or 0 if it is not below, or if a name on the
// way begins with a dot.
std::ptrdiff_t levels_below(const fs::path& file, const fs::path& folder) {
  const fs::path relative = file.lexically_relative(folder);
  const bool has_dot = std::any_of(relative.begin(), relative.end(), [](const fs::path& name) {
    return name.string().starts_with('.');  // also true for ".." and "."
  });
  return has_dot ? 0 : std::distance(relative.begin(), relative.end());
}

// If `file` is below `data`, returns it with the first name below `data` in lower case; otherwise
// returns `file`. `--checkpoint DATA/Val`, for instance, would create the folder Val, and the next
// run would read it as a part of the data set. But if neither Val nor val exists, class_parents has
// only val.
fs::path with_lower_part(const fs::path& file, const fs::path& data) {
  const fs::path relative = file.lexically_relative(data);
  if (relative.empty() || *relative.begin() == "..") return file;
  fs::path result = data / lower_case(relative.begin()->string());
  for (auto name = std::next(relative.begin()); name != relative.end(); ++name) result /= *name;
  return result;
}

}  // namespace

void check_outside_classes(const GivenPaths& paths, const std::string& data,
                           const std::vector<std::string>& class_parents) {
  const std::vector<ReadFolder> folders = folders_read(data, class_parents);
  const fs::path root = future_name(data);
  for (const auto& [output, file] : written_by(paths)) {
    const fs::path lower = with_lower_part(file, root);
    for (const auto& [folder, depth, parent] : folders) {
      if (std::max(levels_below(file, folder), levels_below(lower, folder)) < depth) continue;
      fail_input(
          "{} {} would write in {}, where each folder is read as a class of images; give a path "
          "outside of it",
          output.flag, output.path, parent);
    }
  }
}

}  // namespace tessera::apps
