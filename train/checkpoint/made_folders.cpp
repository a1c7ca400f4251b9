#include "train/checkpoint/made_folders.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>

#include "core/text/input_file.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

// Opens a folder and calls flush(descriptor). Returns errno of the call that failed, or 0.
int flush_with(const fs::path& folder, int (*flush)(int)) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return errno;
  const int error = flush(descriptor) == 0 ? 0 : errno;
  ::close(descriptor);
  return error;
}

}  // namespace

void flush_folder(const fs::path& folder) {
  const int error = flush_with(folder, ::fsync);
  if (error != 0) fail_with_reason(error, folder.string() + ": cannot be flushed to the disk");
}

MadeFolders::~MadeFolders() {
  // A folder that another rank or run has used is not empty. Such a folder and its parents stay.
  std::error_code error;
  for (auto folder = made_.rbegin(); folder != made_.rend(); ++folder) {
    if (!fs::remove(*folder, error)) break;
  }
}

std::error_code MadeFolders::make(const std::string& folder) {
  // Tries to make each folder of the path, from the topmost down. For a folder that exists,
  // create_directory gives no error, or the error of a folder that cannot be made there, for
  // instance at an automount. If a folder is made or found, all its parents exist, so the errors of
  // its parents are dropped.
  std::error_code first, error;
  fs::path path;
  for (const fs::path& part : fs::absolute(folder, error)) {
    path /= part;
    if (fs::create_directory(path, error)) made_.push_back(path);
    // create_directory gives file_exists only if something other than a folder has this path.
    if (error == std::errc::file_exists) error = std::make_error_code(std::errc::not_a_directory);
    if (!error || !first) first = error;
  }
  return first;
}

void MadeFolders::flush() const {
  for (const fs::path& folder : made_) {
    // A user may make folders in a parent that they cannot read, and so cannot open. Then the new
    // folder's whole file system is flushed, which has the folder's name.
    const fs::path parent = folder.parent_path();
    if (::access(parent.c_str(), R_OK) == 0 || errno != EACCES) {
      flush_folder(parent);
    } else if (const int error = flush_with(folder, ::syncfs); error != 0) {
      fail_with_reason(error, folder.string() + ": cannot be flushed to the disk");
    }
  }
}

}  // namespace tessera::train
