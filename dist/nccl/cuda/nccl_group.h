// Sends and receives that belong together:
//   NcclGroup group;
//   TESSERA_NCCL(ncclSend(...)); TESSERA_NCCL(ncclRecv(...));
//   group.launch();
#pragma once

#include "dist/nccl/cuda/nccl_check.h"

namespace tessera::dist {

/// Sends and receives that NCCL runs at once: alone, each would wait for its peer in turn.
class NcclGroup {
 public:
  NcclGroup() { TESSERA_NCCL(ncclGroupStart()); }
  ~NcclGroup() {
    if (open_) (void)ncclGroupEnd();  // after a failure, so that the next call is not part of it
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
