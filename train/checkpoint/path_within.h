// Checks whether a path is inside a folder that a program writes or reads as a whole.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::train {

/// True if `path` is `folder` or is inside it. Links are resolved. The two paths need not exist.
/// Returns false if a path cannot be resolved, for instance a link to itself. Such a path cannot be
/// opened either.
inline bool is_path_within(const std::string& path, const std::string& folder) {
  std::error_code error;
  const std::filesystem::path whole = std::filesystem::weakly_canonical(path, error);
  if (error) return false;
  const std::filesystem::path other = std::filesystem::weakly_canonical(folder, error);
  if (error) return false;
  const std::filesystem::path relative = whole.lexically_relative(other);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace tessera::train
