#include "train/report/timeline.h"

#include <algorithm>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "core/text/step_number.h"
#include "core/trace.h"
#include "train/report/rank_clock.h"

namespace tessera::train {
namespace {

constexpr int most_ranks = 16;
constexpr size_t most_events = 3000;  // limit for each rank

double microseconds(int64_t ns) { return static_cast<double>(ns) / 1e3; }

// If there are too many events, keeps the instants (events of length 0) and the longest events.
// Shorter events would not be visible: a step of ten thousand events is drawn on a few thousand
// pixels.
void keep_longest(std::vector<trace::Event>& events) {
  if (events.size() <= most_events) return;
  std::ranges::stable_sort(events, std::ranges::greater{}, [](const trace::Event& event) {
    const int64_t length = event.end_ns - event.begin_ns;
    return length == 0 ? INT64_MAX : length;
  });
  events.resize(most_events);
}

std::string rank_json(const TimelineWindow& window, const dist::World& world) {
  // The start of the window is converted to rank 0's clock together with the events.
  trace::Event begin{"", trace::Track::compute, window.begin_ns, window.end_ns};
  const int64_t length = window.end_ns - window.begin_ns;
  std::vector<trace::Event> events =
      trace::events_within(window.begin_ns, window.end_ns + length / 4);
  keep_longest(events);
  events.push_back(begin);
  to_clock_of_rank_0(events, world);
  begin = events.back();
  events.pop_back();
  if (world.rank >= most_ranks) return "";
  std::ranges::stable_sort(events, {}, &trace::Event::begin_ns);
  std::string list;
  for (const trace::Event& event : events) {
    list += fmt::format("{}[{},{},{:.1f},{:.1f},{}]", list.empty() ? "" : ",",
                        static_cast<int>(event.track), json_string(event.name),
                        microseconds(event.begin_ns - begin.begin_ns),
                        microseconds(event.end_ns - event.begin_ns), event.place.bucket);
  }
  return JsonObject()
      .add("rank", world.rank)
      .raw("begin_us", fmt::format("{:.1f}", microseconds(begin.begin_ns)))
      .raw("length_us", fmt::format("{:.1f}", microseconds(length)))
      .raw("events", fmt::format("[{}]", list))
      .text();
}

}  // namespace

void TimelineRecorder::launch(int64_t step) {
  if (step_ < 0 || step < step_) return;
  if (step == step_) {
    window_ = TimelineWindow{.step = step, .begin_ns = trace::now_ns()};
    enabled_ = !trace::enabled();
    if (enabled_) trace::enable(true);
  } else if (step == step_ + 1) {
    ended(step_);
  } else {
    end();
  }
}

void TimelineRecorder::ended(int64_t step) {
  if (step == step_ && window_ && window_->end_ns == 0) window_->end_ns = trace::now_ns();
}

void TimelineRecorder::end() {
  if (!window_) return;
  ended(step_);
  if (enabled_) trace::enable(false);
  enabled_ = false;
  step_ = -1;
}

JsonObject timeline_line(const TimelineWindow& window, const dist::World& world) {
  const std::vector<std::string> ranks =
      dist::gather_text(*world.communicator, rank_json(window, world));
  JsonObject line;
  if (world.rank != 0) return line;
  std::string list;
  for (const std::string& rank : ranks) {
    if (!rank.empty()) list += (list.empty() ? "" : ",") + rank;
  }
  return line.add("type", "timeline")
      .add("step", step_number(window.step))
      .raw("ranks", fmt::format("[{}]", list));
}

}  // namespace tessera::train
