// A folder that all ranks of a job can write to. It is inside a temporary folder of rank 0, and is
// removed once every rank has destroyed its SharedFolder.
#pragma once

#include <string>

#include "dist/bootstrap.h"
#include "tests/support/temporary_folder.h"

namespace tessera::test {

class SharedFolder {
 public:
  /// Constructor and destructor are collective.
  explicit SharedFolder(const dist::World& world)
      : world_(world), path_(dist::broadcast_text(*world.communicator, own_.path("shared"))) {}
  ~SharedFolder() { world_.communicator->barrier(); }
  SharedFolder(const SharedFolder&) = delete;
  SharedFolder& operator=(const SharedFolder&) = delete;
  /// Returns the path, which is equal on every rank. The constructor does not create the folder.
  const std::string& path() const { return path_; }

 private:
  dist::World world_;
  TemporaryFolder own_;
  std::string path_;
};

}  // namespace tessera::test
