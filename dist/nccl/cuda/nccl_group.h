// Launches sends and receives of NCCL as one group:
//   NcclGroup group;
//   TESSERA_NCCL(ncclSend(...)); TESSERA_NCCL(ncclRecv(...));
//   group.launch();
#pragma once

#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

/// NCCL runs the sends and receives of a group concurrently. Without a group, each call may wait
/// until its peer makes the matching call. Two ranks that both send first would then wait for each
/// other forever.
class NcclGroup {
 public:
  NcclGroup() { TESSERA_NCCL(ncclGroupStart()); }
  ~NcclGroup() {
    // If a call has thrown, the group is still open. Later calls must not be added to this group.
    if (open_) (void)ncclGroupEnd();
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
