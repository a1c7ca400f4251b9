// Limits the size of the files that this process writes, as long as the object exists. Tests use
// the limit to imitate a full disk. The limit applies even to root.
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
