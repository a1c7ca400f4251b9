#include "train/checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <random>
#include <string_view>
#include <system_error>
#include <thread>
#include <vector>

#include <fmt/format.h>

#include "core/error.h"
#include "core/run_status.h"
#include "core/text/input_file.h"
#include "dist/agreement.h"
#include "dist/communicator.h"
#include "train/checkpoint/checkpoint.h"

namespace tessera::train {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view mark_begin = "lock.";  // 24 hexadecimal digits follow

// Removes the files that put_mark() has left in a folder.
void remove_marks(const std::string& folder) {
  std::error_code error;
  std::vector<fs::path> marks;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool is_mark = name.starts_with(mark_begin) && name.size() == mark_begin.size() + 24;
    if (is_mark && fs::is_empty(entry->path(), error)) marks.push_back(entry->path());
  }
  for (const fs::path& mark : marks) fs::remove(mark, error);
}

}  // namespace

CheckpointFolder::CheckpointFolder(const std::string& folder)
    : folder_(folder), lock_((fs::path(folder) / lock_name).string()) {
  if (const auto error = made_.make(folder)) {
    fail_with_reason(error.value(), folder + ": cannot be made");
  }
  // relaunch starts a job while the programs of the job before it may still be ending. So a program
  // under relaunch waits for their lock.
  const auto patience = std::chrono::seconds(std::getenv(run_status_variable) != nullptr ? 10 : 0);
  const auto limit = std::chrono::steady_clock::now() + patience;
  while (!claim()) {
    if (std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
      continue;
    }
    fail_input("{}: another run writes its checkpoints there; give this run another folder",
               folder);
  }
  // ~CheckpointFolder does not run after an error here, so the claim is given up by release().
  try {
    made_.flush();
    // The folder has no other writer now, so any partial folders and marks are left over from
    // earlier writers.
    remove_partial_checkpoints(folder);
    remove_marks(folder);
  } catch (const fs::filesystem_error& error) {
    release();
    fail_with_reason(
        error.code().value(),
        error.path1().string() + ": left over by an earlier run, and cannot be removed");
  } catch (...) {
    release();
    throw;
  }
}

bool CheckpointFolder::claim() {
  // A lock is accepted if the locked file still has its name (`current` below). On a file system
  // without stable inode numbers, this check never succeeds. So after this many tries, the lock is
  // accepted without the check.
  constexpr int most_tries = 100;
  for (int tries = 1;; ++tries) {
    constexpr int flags = O_RDWR | O_CLOEXEC;
    descriptor_ = ::open(lock_.c_str(), flags | O_CREAT | O_EXCL, 0666);
    const bool made = descriptor_ >= 0;
    // Without O_CREAT, because the file may be gone by then. Then the next try makes it, and `made`
    // is true, so that this object removes it later.
    if (!made && errno == EEXIST) descriptor_ = ::open(lock_.c_str(), flags);
    if (descriptor_ < 0 && errno == ENOENT && tries < most_tries) {
      // The lock file or the folder is gone. A run that is refused, for instance for a wrong flag,
      // removes the lock file and the folders that it has made.
      made_.make(folder_);
      continue;
    }
    if (descriptor_ < 0) fail_with_reason(errno, lock_ + ": cannot be written");
    // The system releases the lock when this process ends, even if it is killed. On file systems
    // without locks, flock's error is not EWOULDBLOCK, and the folder is used without a lock.
    const bool locked = ::flock(descriptor_, LOCK_EX | LOCK_NB) == 0;
    if (!locked && errno != EWOULDBLOCK) return true;
    // Between open and flock, the process that made the lock file may have removed the file. A lock
    // on a removed file is useless, because the next process makes and locks a new file. So
    // `current` is true only if the locked file still has its name.
    struct stat opened {}, named {};
    const bool current = locked && ::fstat(descriptor_, &opened) == 0 &&
                         ::stat(lock_.c_str(), &named) == 0 && opened.st_dev == named.st_dev &&
                         opened.st_ino == named.st_ino;
    removable_ = made && current;
    if (current || (locked && tries == most_tries)) return true;
    ::close(descriptor_);
    if (!locked) return false;
  }
}

CheckpointFolder::~CheckpointFolder() {
  remove_mark();
  release();
}

void CheckpointFolder::release() {
  // Removes the lock file before ::close releases the lock, because after ::close another process
  // may have locked the file.
  try {
    if (removable_ && checkpoint_steps(folder_).empty()) ::unlink(lock_.c_str());
  } catch (const std::exception&) {
    // The folder cannot be read, so the lock file stays: there may be a checkpoint.
  }
  ::close(descriptor_);
}

std::string CheckpointFolder::put_mark() {
  std::random_device random;
  const std::string name =
      fmt::format("{}{:08x}{:08x}{:08x}", mark_begin, random(), random(), random());
  mark_ = (fs::path(folder_) / name).string();
  const int file = ::open(mark_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (file < 0) fail_with_reason(errno, mark_ + ": cannot be written");
  ::close(file);
  return name;
}

void CheckpointFolder::remove_mark() {
  if (!mark_.empty()) ::unlink(mark_.c_str());
  mark_.clear();
}

bool CheckpointFolder::has_mark(const std::string& folder, const std::string& name) {
  // On a network file system, this host may have cached that the folder does not exist, and only an
  // attempt to make the folder asks the server. The mark needs no such attempt: its name is new and
  // random, so nothing about it is cached.
  MadeFolders made;
  made.make(folder);
  std::error_code error;
  return fs::exists(fs::path(folder) / name, error);
}

std::unique_ptr<CheckpointFolder> claim_folder(const std::string& folder,
                                               const dist::World& world) {
  auto claimed = world.rank == 0 ? std::make_unique<CheckpointFolder>(folder) : nullptr;
  if (world.size == 1) return claimed;
  const std::string mark =
      dist::broadcast_text(*world.communicator, claimed ? claimed->put_mark() : "");
  const bool shared = claimed || CheckpointFolder::has_mark(folder, mark);
  dist::check_agreement(
      world, {{"the folder of --checkpoint", shared ? "a folder that all ranks must share"
                                                    : fmt::format("another folder, {}", folder)}});
  if (claimed) claimed->remove_mark();
  return claimed;
}

}  // namespace tessera::train
