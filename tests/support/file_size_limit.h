// As long as a FileSizeLimit exists, it limits the size of each file that this process writes.
// Tests use the limit to imitate a full disk. The limit applies even to root.
#pragma once

#include <cstddef>

#include "tests/support/resource_limit.h"

namespace tessera::test {

class FileSizeLimit : public ResourceLimit {
 public:
  explicit FileSizeLimit(size_t bytes) : ResourceLimit(RLIMIT_FSIZE, bytes) {}
};

}  // namespace tessera::test
