// Measures memory by category: the bytes in a device's memory ledger minus the bytes that were in
// it when the MemoryUse was constructed.
#pragma once

#include <array>

#include "core/memory.h"
#include "dist/communicator.h"

namespace tessera::test {

class MemoryUse {
 public:
  /// Waits for the communicator's earlier calls, which may still use memory. Then resets the
  /// ledger's peaks. Collective.
  explicit MemoryUse(dist::Communicator& communicator, Device device = {})
      : ledger_(memory_ledger(device)) {
    communicator.barrier();
    for (int c = 0; c < category_count; ++c) {
      before_[static_cast<size_t>(c)] = ledger_.current(static_cast<Category>(c));
    }
    ledger_.reset_peaks();
  }

  /// Lowers every peak to the current bytes.
  void reset_peaks() { ledger_.reset_peaks(); }
  int64_t current(Category category) const { return ledger_.current(category) - before(category); }
  int64_t peak(Category category) const { return ledger_.peak(category) - before(category); }

 private:
  int64_t before(Category category) const { return before_[static_cast<size_t>(category)]; }

  MemoryLedger& ledger_;
  std::array<int64_t, category_count> before_{};
};

}  // namespace tessera::test
