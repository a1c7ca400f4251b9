#include "core/trace.h"

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

// Makes a text safe for JSON: escapes quotes and backslashes, drops control characters and replaces
// bytes that are not ASCII. JSON requires valid UTF-8, but the name of a parameter may hold any
// bytes.
std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20) result += byte < 0x7f ? c : '?';
  }
  return result;
}

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

std::string to_chrome_json(const std::vector<Event>& list, int rank) {
  std::string json = fmt::format(
      R"({{"ph":"M","name":"process_name","pid":{0},"args":{{"name":"rank {0}"}}}})", rank);
  for (const Track track :
       {Track::compute, Track::waiting, Track::communication, Track::buckets}) {
    json += fmt::format(
        ",\n" R"({{"ph":"M","name":"thread_name","pid":{},"tid":{},"args":{{"name":"{}"}}}})", rank,
        static_cast<int>(track), track_name(track));
  }
  for (const Event& event : list) {
    const bool instant = event.begin_ns == event.end_ns;
    json += fmt::format(",\n" R"({{"ph":"{}","name":"{}","pid":{},"tid":{},"ts":{:.3f})",
                        instant ? "i" : "X", escaped(event.name), rank,
                        static_cast<int>(event.track), static_cast<double>(event.begin_ns) / 1e3);
    if (instant) {
      json += R"(,"s":"t")";
    } else {
      json += fmt::format(R"(,"dur":{:.3f})",
                          static_cast<double>(event.end_ns - event.begin_ns) / 1e3);
    }
    if (event.id >= 0 || !event.detail.empty()) {
      json += fmt::format(R"(,"args":{{"bucket":{},"detail":"{}"}})", event.id,
                          escaped(event.detail));
    }
    json += "}";
  }
  return json;
}

void Scope::begin(const char* name, Track track, std::string detail, int64_t id) {
  event_ = {name, track, now_ns(), 0, std::move(detail), id};
}

void Scope::finish() {
  event_.end_ns = now_ns();
  if (event_.end_ns == event_.begin_ns) ++event_.end_ns;  // equal times would mark an instant
  record(std::move(event_));
}

}  // namespace tessera::trace
