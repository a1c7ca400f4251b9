// As long as a FileSizeLimit exists, it limits the size of each file that this process writes.
// Tests use the limit to imitate a full disk. The limit applies even to root.
#pragma once

#include <sys/resource.h>

#include <cstddef>

namespace tessera::test {

class FileSizeLimit {
 public:
  explicit FileSizeLimit(size_t bytes) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace tessera::test
