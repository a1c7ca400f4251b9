#include "train/report/trace_file.h"

#include <optional>
#include <string_view>
#include <vector>

#include "core/text/output_file.h"
#include "core/trace.h"
#include "dist/clock.h"

namespace tessera::train {
namespace {

std::optional<dist::ClockReading> clock_at_begin;

}  // namespace

void begin_trace(const dist::World& world) {
  clock_at_begin = dist::compare_clocks(world);
  trace::enable(true);
}

void write_trace(const std::string& path, const dist::World& world) {
  trace::enable(false);
  const dist::ClockReading last = dist::compare_clocks(world);
  const dist::ClockReading first = clock_at_begin.value_or(last);
  std::vector<trace::Event> recorded = trace::take_events();
  for (trace::Event& event : recorded) {
    const int64_t moved = dist::on_rank_0(event.begin_ns, first, last) - event.begin_ns;
    event.begin_ns += moved;
    event.end_ns += moved;
  }
  const std::string own = trace::to_chrome_json(recorded, world.rank);
  const std::vector<std::string> ranks = dist::gather_text(*world.communicator, own);
  if (world.rank != 0) return;
  OutputFile file(path);
  file.write("{\"traceEvents\":[\n");
  std::string_view separator = "";
  for (const std::string& events : ranks) {
    if (events.empty()) continue;
    file.write(separator);
    file.write(events);
    separator = ",\n";
  }
  file.write("\n],\"displayTimeUnit\":\"ms\"}\n");
  file.commit();
}

}  // namespace tessera::train
