// Implements core/profiler.h with NVTX, a header-only library. A profiler names its own library in
// an environment variable, and the first call of NVTX loads that library.
#include "core/profiler.h"

#include <nvtx3/nvToolsExt.h>

namespace tessera::profiler {
namespace {

// Returns null if no profiler is attached.
nvtxDomainHandle_t domain() {
  static const nvtxDomainHandle_t handle = nvtxDomainCreateA("tessera");
  return handle;
}

}  // namespace

bool listens() { return domain() != nullptr; }

void open_range(const char* name, int64_t id) {
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = name;
  if (id >= 0) {
    range.payloadType = NVTX_PAYLOAD_TYPE_INT64;
    range.payload.llValue = id;
  }
  nvtxDomainRangePushEx(domain(), &range);
}

void close_range() { nvtxDomainRangePop(domain()); }

}  // namespace tessera::profiler
