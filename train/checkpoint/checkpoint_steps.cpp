#include "train/checkpoint/checkpoint_steps.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "core/error.h"
#include "core/text/input_file.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/shard_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr const char* name_begin = "step-";

int64_t step_of_name(const std::string& name) {
  if (!name.starts_with(name_begin)) return -1;
  int64_t step = -1;
  const char* const begin = name.data() + std::strlen(name_begin);
  const char* const end = name.data() + name.size();
  if (std::from_chars(begin, end, step).ptr != end || checkpoint_name(step) != name) return -1;
  return step;
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{:09}", name_begin, step); }

bool names_checkpoint(const std::string& path) {
  fs::path whole = fs::path(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // a path like "step-000000100/"
  return step_of_name(whole.filename().string()) >= 0;
}

bool has_manifest(const std::string& folder) {
  std::error_code error;
  return fs::exists(fs::path(folder) / manifest_name, error);
}

bool has_shard(const std::string& folder) {
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    if (is_shard_name(entry->path().filename().string())) return true;
  }
  return false;
}

bool has_other_files(const std::string& folder) {
  bool others = false;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  if (error == std::errc::not_a_directory) return true;
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name == manifest_name) return false;
    // Programs that copy files, and NFS, leave hidden files behind.
    if (!is_shard_name(name) && !name.starts_with('.')) others = true;
  }
  return others && !error;
}

std::vector<int64_t> steps_of_names(const std::string& folder) {
  std::vector<int64_t> steps;
  std::error_code error;
  fs::directory_iterator entry(folder, error);
  for (; !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const int64_t step = step_of_name(entry->path().filename().string());
    if (step >= 0) steps.push_back(step);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_with_reason(error.value(), folder + ": cannot be read");
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

std::vector<int64_t> checkpoint_steps(const std::string& folder) {
  std::vector<int64_t> steps = steps_of_names(folder);
  std::erase_if(steps, [&](int64_t step) {
    const std::string path = (fs::path(folder) / checkpoint_name(step)).string();
    return has_other_files(path) && !has_shard(path);
  });
  return steps;
}

void check_names_are_free(const std::string& folder, int64_t done) {
  for (const int64_t step : steps_of_names(folder)) {
    const std::string path = (fs::path(folder) / checkpoint_name(step)).string();
    if (step <= done || !has_other_files(path)) continue;
    fail_input(
        "{} {}, but the checkpoint of step {} would get this name; give the checkpoints another "
        "folder",
        path,
        fs::is_directory(path) ? "has files of no checkpoint, such as saved weights" : "is a file",
        step);
  }
}

}  // namespace tessera::train
