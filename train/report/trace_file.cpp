#include "train/report/trace_file.h"

#include <string_view>
#include <vector>

#include "core/text/output_file.h"
#include "core/trace.h"
#include "train/report/rank_clock.h"

namespace tessera::train {

void begin_trace(const dist::World& world) {
  begin_rank_clock(world);
  trace::enable(true);
}

void write_trace(const std::string& path, const dist::World& world) {
  trace::enable(false);
  std::vector<trace::Event> recorded = trace::take_events();
  const int64_t origin_ns = to_clock_of_rank_0(recorded, world);
  const std::string own = trace::to_chrome_json(recorded, world.rank, origin_ns);
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
