// NVTX on emulated CUDA: the calls that Tessera uses, with the real header's names, signatures and
// values of constants. The emulation acts as if a profiler were always attached. Tests read the
// ranges with emulated/control.h. Two demands of the documentation are checked:
//   - the attributes of a range have the right version and size, and an ASCII message;
//   - a pop closes a range that the same thread pushed in the same domain.
//
// Not covered: a process without a profiler, and the display of ranges.
#pragma once

#include <cstdint>

#define NVTX_VERSION 3

typedef struct nvtxDomainRegistration_st* nvtxDomainHandle_t;
typedef struct nvtxStringRegistration_st* nvtxStringHandle_t;

enum { NVTX_PAYLOAD_TYPE_INT64 = 2 };
enum { NVTX_MESSAGE_TYPE_ASCII = 1 };

typedef union {
  const char* ascii;
  const wchar_t* unicode;
  nvtxStringHandle_t registered;
} nvtxMessageValue_t;

typedef struct {
  uint16_t version;
  uint16_t size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType;
  int32_t reserved0;
  union {
    uint64_t ullValue;
    int64_t llValue;
    double dValue;
  } payload;
  int32_t messageType;
  nvtxMessageValue_t message;
} nvtxEventAttributes_t;

#define NVTX_EVENT_ATTRIB_STRUCT_SIZE (static_cast<uint16_t>(sizeof(nvtxEventAttributes_t)))
#define NVTX_NO_PUSH_POP_TRACKING (-2)

extern "C" {

nvtxDomainHandle_t nvtxDomainCreateA(const char* name);
/// Returns the range's depth, starting at 0. Returns a negative number for an invalid range.
int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* attributes);
int nvtxDomainRangePop(nvtxDomainHandle_t domain);

}  // extern "C"
