// Compares paths whose links are resolved. An import of weights refuses input files in the folder
// that it writes to. An export refuses an output inside the checkpoint that it reads.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::train {

/// True if `path` is `folder` or is inside it. Links are resolved. The two paths need not exist.
/// Returns false if a path cannot be resolved, for instance a link to itself. Such a path cannot be
/// opened either.
inline bool is_path_within(const std::string& path, const std::string& folder) {
  std::error_code error;
  // weakly_canonical alone leaves a path relative if its first part does not exist.
  const auto resolved = [&error](const std::string& name) {
    const std::filesystem::path absolute = std::filesystem::absolute(name, error);
    return error ? absolute : std::filesystem::weakly_canonical(absolute, error);
  };
  const std::filesystem::path whole = resolved(path);
  if (error) return false;
  const std::filesystem::path other = resolved(folder);
  if (error) return false;
  const std::filesystem::path relative = whole.lexically_relative(other);
  return !relative.empty() && *relative.begin() != "..";
}

/// True if both paths are the same after links are resolved. False if a path cannot be resolved.
inline bool is_same_path(const std::string& a, const std::string& b) {
  return is_path_within(a, b) && is_path_within(b, a);
}

}  // namespace tessera::train
