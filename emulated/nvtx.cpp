// Implements the emulated NVTX (emulated/include/nvtx3/nvToolsExt.h), and counts launches by range.
#include <nvtx3/nvToolsExt.h>

#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "emulated/capture.h"
#include "emulated/control.h"

struct nvtxDomainRegistration_st {
  std::string name;
};

namespace emulated {
namespace {

struct Open {
  nvtxDomainHandle_t domain;
  NvtxRange range;
};

std::mutex mutex;
bool keeps = false;
std::vector<NvtxRange> closed;
bool counts = false;
std::map<std::string, int64_t> launches;
thread_local std::vector<Open> open_ranges;

}  // namespace

void keep_nvtx_ranges(bool on) {
  const std::scoped_lock lock(mutex);
  keeps = on;
}

std::vector<NvtxRange> take_nvtx_ranges() {
  const std::scoped_lock lock(mutex);
  return std::exchange(closed, {});
}

void count_launches(bool on) {
  const std::scoped_lock lock(mutex);
  counts = on;
}

std::map<std::string, int64_t> take_launches() {
  const std::scoped_lock lock(mutex);
  return std::exchange(launches, {});
}

void count_launch() {
  const std::scoped_lock lock(mutex);
  if (!counts) return;
  std::string path;
  for (const Open& open : open_ranges) path += (path.empty() ? "" : "/") + open.range.message;
  ++launches[path];
}

}  // namespace emulated

using namespace emulated;

nvtxDomainHandle_t nvtxDomainCreateA(const char* name) {
  // Domains are never destroyed. The list keeps them reachable for leak checkers.
  static auto& domains = *new std::deque<nvtxDomainRegistration_st>;
  const std::scoped_lock lock(mutex);
  return &domains.emplace_back(nvtxDomainRegistration_st{name});
}

int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes) {
  const nvtxEventAttributes_t& given = *attributes;
  if (given.version != NVTX_VERSION || given.size != NVTX_EVENT_ATTRIB_STRUCT_SIZE ||
      given.messageType != NVTX_MESSAGE_TYPE_ASCII) {
    return NVTX_NO_PUSH_POP_TRACKING;
  }
  const int depth = static_cast<int>(open_ranges.size());
  const bool has_payload = given.payloadType == NVTX_PAYLOAD_TYPE_INT64;
  open_ranges.push_back({domain,
                         {.domain = domain->name,
                          .message = given.message.ascii,
                          .payload = has_payload ? given.payload.llValue : -1,
                          .depth = depth}});
  return depth;
}

int nvtxDomainRangePop(nvtxDomainHandle_t domain) {
  if (open_ranges.empty() || open_ranges.back().domain != domain) return NVTX_NO_PUSH_POP_TRACKING;
  NvtxRange range = std::move(open_ranges.back().range);
  open_ranges.pop_back();
  const int depth = range.depth;
  const std::scoped_lock lock(mutex);
  if (keeps) closed.push_back(std::move(range));
  return depth;
}
