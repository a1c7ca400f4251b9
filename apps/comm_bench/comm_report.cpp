#include "apps/comm_bench/comm_report.h"

#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/comm_bench/comm_bandwidth.h"
#include "core/cuda.h"
#include "core/text/number_text.h"
#include "core/version.h"
#include "train/report/run_log.h"
#include "train/report/table.h"

namespace tessera::apps {
namespace {

using dist::Collective;

const char* heading(Collective collective) {
  switch (collective) {
    case Collective::exchange:
      return "exchange with the additions of the ordered reduction; counts like reduce_scatter";
    case Collective::reduce_scatter:
      return "reduce_scatter: size of all pieces, count of one, busbw = algbw x (n-1)/n";
    case Collective::all_gather:
      return "all_gather: size of all pieces, count of one, busbw = algbw x (n-1)/n";
    case Collective::all_reduce: return "all_reduce: busbw = algbw x 2(n-1)/n";
    case Collective::broadcast: return "broadcast from rank 0: busbw = algbw";
    case Collective::exchange_v:
      return "exchange_v (alltoallv): pieces of unequal length from 3 ranks on, count of a mean "
             "one, busbw = algbw x (n-1)/n";
    case Collective::all_gather_v:
      return "all_gather_v: pieces of unequal length from 3 ranks on, count of a mean one, "
             "busbw = algbw x (n-1)/n";
    case Collective::send_receive:
      return "send_receive (sendrecv): the buffer goes to the next rank of a ring, busbw = algbw";
    case Collective::barrier:
    case Collective::split: break;
  }
  return "";
}

int64_t argument_count(const CommResult& result, DType dtype, int64_t ranks) {
  return argument_elements(result.collective, result.bytes / dtype_size(dtype), ranks);
}

}  // namespace

std::string comm_title(const CommOptions& options, const dist::World& world) {
  const Device device = world.communicator->device();
  const std::string name =
      device.is_cpu() ? "" : fmt::format(" ({})", cuda::device_name(device.index));
  std::string text = fmt::format(
      "# {}, device {}{}, communicator {}{}, {}\n"
      "# time: the median of {} after {}, each as long as on the slowest rank\n"
      "# size: rounded up to whole pieces, a multiple of {} bytes\n",
      counted(world.size, "rank"), dist::device_type_name(device), name, world.communicator->name(),
      options.groups == 0 ? "" : fmt::format(", the first of {}", counted(options.groups, "group")),
      dtype_name(options.dtype), counted(options.iterations, "call"), options.warmup,
      world.size * dtype_size(options.dtype));
  if (options.without_all_reduce) {
    text += "# all_reduce is left out: it sums only f32\n";
  }
  return text;
}

std::string comm_table(const std::vector<CommResult>& results, DType dtype, int64_t ranks) {
  train::Table table({"size", "count", "type", "time", "algbw", "busbw", "#wrong"});
  table.add({"(B)", "(elements)", "", "(us)", "(GB/s)", "(GB/s)", "(elements)"});
  for (const CommResult& result : results) {
    const Bandwidth speed = bandwidth(result.collective, result.bytes, ranks, result.seconds);
    table.add({std::to_string(result.bytes), std::to_string(argument_count(result, dtype, ranks)),
               std::string(dtype_name(dtype)), fmt::format("{:.2f}", 1e6 * result.seconds),
               fmt::format("{:.2f}", speed.algorithm), fmt::format("{:.2f}", speed.bus),
               std::to_string(result.wrong)});
  }
  std::string text = fmt::format("#\n# {}\n", heading(results.front().collective));
  std::istringstream lines(table.text());
  std::string line;
  for (int number = 0; std::getline(lines, line); ++number) {
    text += fmt::format("{} {}\n", number < 2 ? '#' : ' ', line);
  }
  return text;
}

JsonObject comm_json(const CommOptions& options, const dist::World& world,
                     const std::vector<CommResult>& results) {
  const Device device = world.communicator->device();
  std::vector<std::string> rows;
  for (const CommResult& result : results) {
    const Bandwidth speed = bandwidth(result.collective, result.bytes, world.size, result.seconds);
    rows.push_back(JsonObject()
                       .add("collective", dist::collective_name(result.collective))
                       .add("bytes", result.bytes)
                       .add("count", argument_count(result, options.dtype, world.size))
                       .add("time_us", 1e6 * result.seconds)
                       .add("algbw_gb_per_s", speed.algorithm)
                       .add("busbw_gb_per_s", speed.bus)
                       .add("wrong", result.wrong)
                       .text());
  }
  JsonObject json;
  json.add("program", "comm_bench")
      .add("version", version())
      .add("ranks", world.size)
      .add("device", dist::device_type_name(device));
  if (!device.is_cpu()) json.add("device_name", cuda::device_name(device.index));
  return json.add("communicator", world.communicator->name())
      .add("groups", options.groups)
      .add("dtype", dtype_name(options.dtype))
      .add("iterations", options.iterations)
      .add("warmup", options.warmup)
      .raw("results", fmt::format("[{}]", fmt::join(rows, ",")));
}

}  // namespace tessera::apps
