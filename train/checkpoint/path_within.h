// Whether a file would stand in a folder that another one writes as a whole.
#pragma once

#include <filesystem>
#include <string>

namespace tessera::train {

/// Whether `path` is `folder` or below it, through links too; neither need be there. False where
/// the system cannot tell, as for a link to itself, which no one can open either.
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
