// Memory that must never be reused. A transfer in flight cannot be cancelled reliably: after a
// failure MPI may still read and write the transfer's buffers, at a time that the peer decides.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

namespace tessera::dist {

/// Keeps `owner` alive until the process ends, which is soon after a failed collective.
inline void keep_until_exit(std::shared_ptr<const void> owner) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::shared_ptr<const void>>;  // never destroyed
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(owner));
}

}  // namespace tessera::dist
