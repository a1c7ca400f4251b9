// Tests that a profiler sees trace scopes as NVTX ranges, and that emulated NVTX refuses wrong
// calls.
#include <nvtx3/nvToolsExt.h>

#include <stdexcept>
#include <thread>

#include "core/trace.h"
#include "emulated/control.h"
#include "tests/support/catch.h"

using namespace tessera;

namespace {

/// Keeps NVTX ranges during a test. Discards all ranges before and after the test.
class Profiling {
 public:
  Profiling() {
    emulated::take_nvtx_ranges();
    emulated::keep_nvtx_ranges(true);
  }
  ~Profiling() {
    emulated::keep_nvtx_ranges(false);
    emulated::take_nvtx_ranges();
  }
};

}  // namespace

TEST_CASE("a scope is a range in a profiler, with and without a trace") {
  const Profiling profiling;
  for (const bool traced : {false, true}) {
    trace::enable(traced);
    {
      const trace::Scope outer("outer");
      const trace::Scope inner("inner", trace::Track::buckets, {4}, [] { return std::string(); });
    }
    trace::enable(false);
    CHECK(trace::take_events().size() == (traced ? 2 : 0));
    const auto ranges = emulated::take_nvtx_ranges();
    REQUIRE(ranges.size() == 2);
    CHECK(ranges[0].domain == "tessera");
    CHECK(ranges[0].message == "inner");
    CHECK(ranges[0].payload == 4);
    CHECK(ranges[0].depth == 1);
    CHECK(ranges[1].message == "outer");
    CHECK(ranges[1].payload == -1);
    CHECK(ranges[1].depth == 0);
  }
}

TEST_CASE("a profiler's ranges nest per thread, and end when an exception is thrown") {
  const Profiling profiling;
  const trace::Scope here("here");
  std::thread([] { const trace::Scope there("there"); }).join();
  try {
    const trace::Scope fails("fails");
    throw std::runtime_error("on purpose");
  } catch (const std::runtime_error&) {
  }
  const auto ranges = emulated::take_nvtx_ranges();
  REQUIRE(ranges.size() == 2);
  CHECK(ranges[0].message == "there");
  CHECK(ranges[0].depth == 0);
  CHECK(ranges[1].message == "fails");
  CHECK(ranges[1].depth == 1);
}

TEST_CASE("emulated NVTX refuses what the documentation forbids") {
  const Profiling profiling;
  const nvtxDomainHandle_t domain = nvtxDomainCreateA("a domain");
  CHECK(nvtxDomainRangePop(domain) < 0);
  nvtxEventAttributes_t range{};
  range.version = NVTX_VERSION;
  range.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
  CHECK(nvtxDomainRangePushEx(domain, &range) < 0);  // the range has no message
  range.messageType = NVTX_MESSAGE_TYPE_ASCII;
  range.message.ascii = "range";
  CHECK(nvtxDomainRangePushEx(domain, &range) == 0);
  CHECK(nvtxDomainRangePop(nvtxDomainCreateA("another one")) < 0);
  CHECK(nvtxDomainRangePop(domain) == 0);
  range.size = 1;
  CHECK(nvtxDomainRangePushEx(domain, &range) < 0);
  CHECK(emulated::take_nvtx_ranges().size() == 1);
}
