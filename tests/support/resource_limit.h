// Limits a resource of this process as long as a ResourceLimit exists. Tests use the limits to
// imitate a machine whose resources are used up. They apply even to root.
#pragma once

#include <sys/resource.h>

namespace tessera::test {

class ResourceLimit {
 public:
  /// `resource` is a constant of setrlimit, such as RLIMIT_FSIZE.
  ResourceLimit(int resource, rlim_t value) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    const rlimit limit{.rlim_cur = value, .rlim_max = before_.rlim_max};
    ::setrlimit(resource_, &limit);
  }
  ~ResourceLimit() { ::setrlimit(resource_, &before_); }
  ResourceLimit(const ResourceLimit&) = delete;
  ResourceLimit& operator=(const ResourceLimit&) = delete;

 private:
  int resource_;
  rlimit before_{};
};

}  // namespace tessera::test
