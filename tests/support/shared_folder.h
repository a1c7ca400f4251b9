// A folder of rank 0 that all ranks of a job write to. It is removed once every rank has destroyed
// its object.
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
  /// The path, equal on every rank. The folder itself does not exist yet.
  const std::string& path() const { return path_; }

 private:
  dist::World world_;
  TemporaryFolder own_;
  std::string path_;
};

}  // namespace tessera::test
