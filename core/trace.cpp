#include "core/trace.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <mutex>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <time.h>

#include "core/trace_clock.h"

namespace tessera::trace {
namespace {

std::mutex mutex;
std::vector<Event> events;
std::atomic<int64_t> skew_ns{0};

constexpr std::string_view track_name(Track track) {
  constexpr std::string_view names[] = {"compute", "waiting", "communication", "buckets"};
  return names[static_cast<size_t>(track)];
}

// Returns the thread number of a track in the trace. Each rank has its own thread numbers, because
// Perfetto merges threads with equal numbers, even of different processes, and then drops spans
// that overlap.
int thread_of(int rank, Track track) {
  constexpr int tracks = 4;
  return tracks * rank + static_cast<int>(track);
}

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// Makes a text safe for JSON: escapes quotes and backslashes, drops bytes below 0x20, and replaces
// each byte from 0x7F on by "?". JSON requires valid UTF-8, but the name of a parameter may contain
// any bytes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20) result += byte < 0x7f ? c : '?';
  }
  return result;
}

// One point of an arrow in the trace. `phase` is the trace format's letter: 's' for the arrow's
// begin, 't' for a point in between, 'f' for the end. The viewer attaches the point to the event on
// `track` that contains the time `at_ns`.
struct ArrowPoint {
  char phase;
  int64_t id;
  Track track;
  int64_t at_ns;
};

// Finds the arrows of one rank. In each micro-step, a bucket begins an arrow when its gradient is
// ready to be sent. An exchange continues the bucket's oldest arrow that has no exchange yet. An
// update ends all arrows that the bucket has begun since its previous update.
class Arrows {
 public:
  explicit Arrows(int rank) : next_id_((int64_t{rank} << 32) + 1) {}

  std::vector<ArrowPoint> of(const std::vector<Event>& list) {
    std::vector<const Event*> stations;
    for (const Event& event : list) {
      if (event.place.station != Station::none) stations.push_back(&event);
    }
    std::ranges::stable_sort(stations, {}, &Event::begin_ns);
    for (const Event* event : stations) visit(*event);
    return std::move(points_);
  }

 private:
  struct Waiting {
    std::deque<int64_t> for_exchange;
    std::vector<int64_t> for_update;  // includes all ids in for_exchange
  };

  void visit(const Event& event) {
    Waiting& waiting = waiting_[{event.place.group, event.place.bucket}];
    switch (event.place.station) {
      case Station::none:
        return;
      case Station::ready:
        // The arrow begins at the compute track's event during which the gradient became ready.
        add('s', next_id_, Track::compute, event.begin_ns);
        waiting.for_exchange.push_back(next_id_);
        waiting.for_update.push_back(next_id_++);
        return;
      case Station::exchange:
        if (waiting.for_exchange.empty()) return;
        add('t', waiting.for_exchange.front(), event.track, event.begin_ns);
        waiting.for_exchange.pop_front();
        return;
      case Station::update:
        for (const int64_t id : waiting.for_update) add('f', id, event.track, event.begin_ns);
        waiting = {};
    }
  }

  void add(char phase, int64_t id, Track track, int64_t at_ns) {
    points_.push_back({phase, id, track, at_ns});
  }

  int64_t next_id_;
  std::map<std::pair<int64_t, int64_t>, Waiting> waiting_;
  std::vector<ArrowPoint> points_;
};

}  // namespace

void enable(bool on) { is_enabled.store(on, std::memory_order_relaxed); }

int64_t now_ns() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);  // one clock for all processes of a host
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec +
         skew_ns.load(std::memory_order_relaxed);
}

void skew_clock(int64_t ns) { skew_ns.store(ns, std::memory_order_relaxed); }

void record(Event event) {
  const std::scoped_lock lock(mutex);
  events.push_back(std::move(event));
}

std::vector<Event> take_events() {
  const std::scoped_lock lock(mutex);
  return std::exchange(events, {});
}

std::vector<Event> events_within(int64_t begin_ns, int64_t end_ns) {
  const std::scoped_lock lock(mutex);
  std::vector<Event> result;
  std::ranges::copy_if(events, std::back_inserter(result), [&](const Event& event) {
    return event.end_ns >= begin_ns && event.begin_ns <= end_ns;
  });
  return result;
}

std::string to_chrome_json(const std::vector<Event>& list, int rank, int64_t origin_ns) {
  std::string json = fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  for (const Track track :
       {Track::compute, Track::waiting, Track::communication, Track::buckets}) {
    json += fmt::format(
        ",\n"
        R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})",
        rank, thread_of(rank, track), track_name(track));
  }
  for (const Event& event : list) {
    const bool instant = event.begin_ns == event.end_ns;
    json += fmt::format(
        ",\n"
        R"({{"ph":"{}","name":"{}","pid":{},"tid":{},"ts":{:.3f})",
        instant ? "i" : "X", escaped(event.name), rank, thread_of(rank, event.track),
        microseconds(event.begin_ns - origin_ns));
    if (instant) {
      json += R"(,"s":"t")";
    } else {
      json += fmt::format(R"(,"dur":{:.3f})", microseconds(event.end_ns - event.begin_ns));
    }
    if (event.place.bucket >= 0 || !event.detail.empty()) {
      json += fmt::format(R"(,"args":{{"bucket":{},"detail":"{}"}})", event.place.bucket,
                          escaped(event.detail));
    }
    json += "}";
  }
  for (const ArrowPoint& point : Arrows(rank).of(list)) {
    json += fmt::format(
        ",\n"
        R"({{"ph":"{}","cat":"gradient","name":"gradient","id":{},"pid":{},"tid":{},)"
        R"("ts":{:.3f}{}}})",
        point.phase, point.id, rank, thread_of(rank, point.track),
        microseconds(point.at_ns - origin_ns), point.phase == 'f' ? R"(,"bp":"e")" : "");
  }
  return json;
}

void Scope::begin(const char* name, Track track, std::string detail, const BucketPlace& place) {
  event_ = {name, track, now_ns(), 0, std::move(detail), place};
}

void Scope::finish() {
  event_.end_ns = now_ns();
  if (event_.end_ns == event_.begin_ns) ++event_.end_ns;  // equal times would mark an instant
  record(std::move(event_));
}

}  // namespace tessera::trace
