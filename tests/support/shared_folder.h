// A folder of rank 0 that all ranks of a job write to, gone when all are through.
#pragma once

#include <string>

#include "dist/bootstrap.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {

class SharedFolder {
 public:
  /// Collective, and so is its end.
  explicit SharedFolder(const dist::World& world)
      : world_(world), path_(dist::broadcast_text(*world.communicator, own_.path("shared"))) {}
  ~SharedFolder() { world_.communicator->barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  /// The same on every rank. It is not there yet.
  const std::string& path() const { return path_; }

 private:
  dist::World world_;
  TemporaryFolder own_;
  std::string path_;
};

}  // namespace tessera::test
