// Checks calls of NCCL: TESSERA_NCCL(ncclGroupEnd()) throws on failure, with the text of the call
// and NCCL's error message.
#pragma once

#include <nccl.h>

#include "core/error.h"

namespace tessera::dist {

inline void check_nccl(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* const reason = ncclGetLastError(nullptr);
  fail("{}: {} ({})", call, ncclGetErrorString(result), reason == nullptr ? "" : reason);
}

}  // namespace tessera::dist

#define TESSERA_NCCL(call) ::tessera::dist::check_nccl((call), #call)
