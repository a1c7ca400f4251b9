// Claims a folder of checkpoints for one writer, so that no other process writes checkpoints to the
// folder.
//
//   const auto claimed = claim_folder("runs/a", world);  // held for as long as the run writes
#pragma once

#include <memory>
#include <string>

#include "dist/bootstrap.h"
#include "train/checkpoint/made_folders.h"

namespace tessera::train {

/// Claims a folder of checkpoints for one writer until destruction. Makes the folder if it is
/// missing, flushes the names of new folders to the disk (MadeFolders::flush), and removes
/// unfinished checkpoints of earlier writers, as remove_partial_checkpoints does. Throws InputError
/// if another process has claimed the folder, or if the folder cannot be written; but Error if the
/// reason is the machine (fail_to_open). Under the program `relaunch`, first waits up to 10 s for
/// the other process to give the folder up. On a file system without locks, other processes are not
/// noticed. If the folder has no checkpoint, for instance because the run was refused, the
/// destructor removes what this object has made: the lock file, and empty folders.
class CheckpointFolder {
 public:
  explicit CheckpointFolder(const std::string& folder);
  ~CheckpointFolder();
  CheckpointFolder(const CheckpointFolder&) = delete;
  CheckpointFolder& operator=(const CheckpointFolder&) = delete;

  /// Puts a mark into the folder: an empty file with a random name. Returns the name. Processes on
  /// other hosts recognize the folder by this file. remove_mark() or the destructor removes the
  /// file. Throws InputError if the file cannot be made, or Error if the reason is the machine.
  std::string put_mark();
  void remove_mark();
  /// True if `folder` has the mark `name`.
  static bool has_mark(const std::string& folder, const std::string& name);

 private:
  /// Opens and locks the file `lock_`. Returns false if another process has locked it.
  bool claim();
  /// Gives the claim up. Removes the lock file if this object has made it and the folder has no
  /// checkpoint.
  void release();

  std::string folder_;
  std::string lock_;
  std::string mark_;  // the file of put_mark(); empty if there is none
  MadeFolders made_;
  int descriptor_ = -1;
  bool removable_ = false;  // true if this object has made and locked the lock file
};

/// Claims a run's folder of checkpoints: rank 0 gets the claim, other ranks get null. Each rank
/// gives its own path, because hosts may mount the folder at different paths. Throws InputError on
/// every rank if a rank's path leads to another folder than rank 0's path. Without this error,
/// the first checkpoint would fail, perhaps after hours, because rank 0 would not find that rank's
/// shard. On rank 0, also throws as the constructor of CheckpointFolder does. Collective.
std::unique_ptr<CheckpointFolder> claim_folder(const std::string& folder, const dist::World& world);

}  // namespace tessera::train
