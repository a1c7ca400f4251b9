// Folders that a process makes for checkpoints, and their names on the disk.
#pragma once

#include <filesystem>
#include <string>
#include <system_error>
#include <vector>

namespace tessera::train {

/// Flushes the names in a folder to the disk, so that they survive a failure of the machine. Throws
/// InputError if the folder cannot be opened or flushed, but Error if the reason is the machine
/// (fail_to_open in core/text/input_file.h).
void flush_folder(const std::filesystem::path& folder);

/// Folders that a process has made, parents first. The destructor removes those that are empty.
class MadeFolders {
 public:
  MadeFolders() = default;
  ~MadeFolders();
  MadeFolders(const MadeFolders&) = delete;
  MadeFolders& operator=(const MadeFolders&) = delete;

  /// Makes `folder` and its missing parents. If this fails, returns the error of the topmost folder
  /// that neither exists nor could be made.
  std::error_code make(const std::string& folder);

  /// Flushes the names of the folders made so far to the disk. Without this, a failure of the
  /// machine could lose a new folder, with all files in it that were flushed. Throws as
  /// flush_folder does.
  void flush() const;

 private:
  std::vector<std::filesystem::path> made_;
};

}  // namespace tessera::train
