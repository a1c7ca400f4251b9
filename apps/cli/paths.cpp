#include "apps/cli/paths.h"

#include <sys/stat.h>

#include <filesystem>
#include <string_view>

#include "core/error.h"

namespace tessera::apps {
namespace {

namespace fs = std::filesystem;

// A file that is not there yet is known by the name that it will have.
bool same_file(const std::string& a, const std::string& b) {
  struct stat of_a{};
  struct stat of_b{};
  const bool has_a = ::stat(a.c_str(), &of_a) == 0;
  const bool has_b = ::stat(b.c_str(), &of_b) == 0;
  if (has_a != has_b) return false;
  // Devices such as /dev/null keep nothing that could be lost.
  if (has_a && !S_ISREG(of_a.st_mode) && !S_ISDIR(of_a.st_mode)) return false;
  if (has_a) return of_a.st_dev == of_b.st_dev && of_a.st_ino == of_b.st_ino;
  std::error_code error;
  // Absolute first: of a relative name that is not there nothing would be resolved.
  const fs::path name = fs::weakly_canonical(fs::absolute(a), error);
  return !error && name == fs::weakly_canonical(fs::absolute(b), error) && !error;
}

// Whether `path` is a file that is there, in the folder or below it.
bool is_inside(const std::string& path, const std::string& folder) {
  std::error_code error;
  if (!fs::is_directory(folder, error) || !fs::is_regular_file(path, error)) return false;
  const fs::path relative = fs::canonical(path, error).lexically_relative(fs::canonical(folder));
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

void check_paths(const GivenPaths& paths) {
  for (size_t i = 0; i < paths.outputs.size(); ++i) {
    const auto& [flag, path, may_replace] = paths.outputs[i];
    if (path.empty()) continue;
    for (const auto& [input_flag, input, unused] : paths.inputs) {
      const bool replaces = may_replace != nullptr && std::string_view(may_replace) == input_flag;
      if (input.empty() || replaces) continue;
      if (same_file(path, input)) {
        fail_input("{} {} is what {} reads, and would be overwritten", flag, path, input_flag);
      }
      if (is_inside(path, input)) {
        fail_input("{} {} is a file in the folder that {} reads, and would be overwritten", flag,
                   path, input_flag);
      }
    }
    for (size_t j = 0; j < i; ++j) {
      const auto& [other_flag, other, unused] = paths.outputs[j];
      if (!other.empty() && same_file(path, other)) {
        fail_input("{} and {} would write the same file, {}", other_flag, flag, path);
      }
    }
  }
}

}  // namespace tessera::apps
