// Memory that nobody may be given again. A transfer that has failed cannot be called back: a
// message that is on its way is still read and written by MPI, at a time that its peer decides.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace tessera::dist {

/// Holds `owner` until the process ends, which after a failed collective is soon.
inline void keep_until_exit(std::shared_ptr<const void> owner) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;  // no destructor lets them go
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(owner));
}

}  // namespace tessera::dist
