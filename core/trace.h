// Records the times of the program's scopes, as a trace in the Chrome/Perfetto format. An attached
// profiler shows each scope as a named range of its time line. If tracing is off and no profiler is
// attached, a scope costs only a few predictable branches.
//
//   trace::Scope scope("linear");                                 // on the compute track
//   trace::Scope scope("reduce", trace::Track::communication, {bucket}, [&] { return "..."; });
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "core/profiler.h"

namespace tessera::trace {

enum class Track : uint8_t { compute, waiting, communication, buckets };

/// The stations of a bucket's gradient: complete on this rank (ready), sent (exchange), and used by
/// the optimizer (update). Arrows in the trace connect the stations. `ready` begins an arrow.
/// `exchange` continues the bucket's oldest arrow that has no exchange yet. `update` ends the
/// arrows of the bucket.
///
/// A rank may add up the gradients of several micro-steps and send only the sum. Then only the
/// gradient of the last micro-step is `ready`, and earlier gradients have the station `none`. If
/// earlier gradients were `ready`, the exchange would continue the arrow of the first micro-step
/// instead of the last.
enum class Station : uint8_t { none, ready, exchange, update };

/// The bucket of an event. Each set of parameters numbers its own buckets.
struct BucketPlace {
  int64_t bucket = -1;  // -1: none
  int64_t group = 0;    // the set of parameters
  Station station = Station::none;
};

struct Event {
  std::string name = {};
  Track track = Track::compute;
  int64_t begin_ns = 0;     // on a clock that all ranks of a host share
  int64_t end_ns = 0;       // equal to begin_ns for an instant
  std::string detail = {};  // the argument "detail" of the event in the trace
  BucketPlace place = {};
};

inline std::atomic<bool> is_enabled{false};
inline bool enabled() { return is_enabled.load(std::memory_order_relaxed); }
void enable(bool on);

/// Returns the time in nanoseconds, on a clock that all processes of a host share.
int64_t now_ns();
void record(Event event);
/// Returns the events recorded since the last call, in order of recording.
std::vector<Event> take_events();

/// Returns copies of the events that overlap the time from `begin_ns` to `end_ns`. Events that
/// take_events() has returned are left out.
std::vector<Event> events_within(int64_t begin_ns, int64_t end_ns);

/// Returns one rank's elements of the Chrome JSON array ("ph":"X" ...), separated by commas,
/// without brackets. Arrows (flow events) lead from the operation that completes a bucket's
/// gradient to the bucket's exchange, if there is one, and on to its update.
///
/// Times are written relative to `origin_ns`, which must be the same on all ranks. Trace viewers
/// keep times in floating point. They would round the times of a clock that has run for months.
std::string to_chrome_json(const std::vector<Event>& events, int rank, int64_t origin_ns);

/// Records an event that lasts as long as the object. `detail` is called only if tracing is on.
class Scope {
 public:
  explicit Scope(const char* name, Track track = Track::compute) : range_(name, -1) {
    if (enabled()) begin(name, track, {}, {});
  }
  template <class Detail>
  Scope(const char* name, Track track, const BucketPlace& place, Detail&& detail)
      : range_(name, place.bucket) {
    if (enabled()) begin(name, track, detail(), place);
  }
  ~Scope() {
    if (event_.begin_ns != 0) finish();
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  void begin(const char* name, Track track, std::string detail, const BucketPlace& place);
  void finish();

  profiler::Range range_;
  Event event_;
};

}  // namespace tessera::trace
