#include "train/report/trace_file.h"

#include <string_view>
#include <vector>

#include "core/text/output_file.h"
#include "core/trace.h"

namespace tessera::train {

void write_trace(const std::string& path, const dist::World& world) {
  trace::enable(false);
  const std::string own = trace::to_chrome_json(trace::take_events(), world.rank);
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
