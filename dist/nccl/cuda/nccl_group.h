// Launches sends and receives of NCCL as one group:
//   NcclGroup group;
//   TESSERA_NCCL(ncclSend(...)); TESSERA_NCCL(ncclRecv(...));
//   group.launch();
#pragma once

#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

/// NCCL runs the sends and receives of a group concurrently. Without a group each would wait for
/// its peer, and two ranks that both send first would hang.
class NcclGroup {
 public:
  NcclGroup() { TESSERA_NCCL(ncclGroupStart()); }
  ~NcclGroup() {
    if (open_) (void)ncclGroupEnd();  // after a failure: later calls must not join this group
  }
  NcclGroup(const NcclGroup&) = delete;
  NcclGroup& operator=(const NcclGroup&) = delete;
  void launch() {
    open_ = false;
    TESSERA_NCCL(ncclGroupEnd());
  }

 private:
  bool open_ = true;
};

}  // namespace tessera::dist
