#include "apps/comm_bench_options.h"

#include <array>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "apps/console/quantity.h"
#include "core/error.h"

namespace tessera::apps {
namespace {

using dist::Collective;

constexpr std::array measured = {Collective::exchange,     Collective::reduce_scatter,
                                 Collective::all_gather,   Collective::all_reduce,
                                 Collective::broadcast,    Collective::exchange_v,
                                 Collective::all_gather_v, Collective::send_receive};

// The largest allowed size of a buffer: more than the memory of any machine. The default limit of
// parse_bytes would be too high, because a buffer of that size has more elements than a tensor may
// have.
constexpr MostBytes most_buffer{int64_t{256} << 40, "256 TiB"};

// Values of flags as text, before they are parsed.
struct Given {
  std::string min_bytes = "1KiB";
  std::string max_bytes = "128MiB";
  std::string collective = "all";
  std::string dtype = "f32";
};

void add_buffers(Flags& app, Given& given, CommOptions& options) {
  const char* group = "Buffers";
  app.add_option("--min-bytes", given.min_bytes,
                 "Smallest size of a rank's buffer, such as 1KiB or 4MB")
      ->capture_default_str()
      ->group(group);
  app.add_option("--max-bytes", given.max_bytes,
                 fmt::format("Largest size of a rank's buffer, at most {}", most_buffer.text))
      ->capture_default_str()
      ->group(group);
  app.add_option("--factor", options.sizes.factor, "Factor between one buffer size and the next")
      ->capture_default_str()
      ->group(group);
  app.add_option("--dtype", given.dtype, "Dtype of the buffer's elements: f32, bf16 or f16")
      ->capture_default_str()
      ->one_of({"f32", "bf16", "f16"})
      ->group(group);
}

void add_measurement(Flags& app, Given& given, CommOptions& options) {
  const char* group = "Measurement";
  app.add_option("--collective", given.collective,
                 "Collective to measure: exchange (the ordered reduction), reduce_scatter, "
                 "all_gather, all_reduce, broadcast, exchange_v (alltoallv), all_gather_v, "
                 "send_receive (sendrecv) or all")
      ->capture_default_str()
      ->one_of({"exchange", "reduce_scatter", "all_gather", "all_reduce", "broadcast", "exchange_v",
                "all_gather_v", "send_receive", "all"})
      ->group(group);
  app.add_option("--groups", options.groups,
                 "Number of groups into which the ranks are split, and which are measured at the "
                 "same time; 1: a group of all ranks; 0: no split")
      ->capture_default_str()
      ->group(group);
  app.add_option("--iterations", options.iterations, "Timed calls, of which the median is printed")
      ->capture_default_str()
      ->group(group);
  app.add_option("--warmup", options.warmup, "Untimed calls before the timed ones")
      ->capture_default_str()
      ->group(group);
}

DType dtype(const std::string& name) {
  if (name == "bf16") return DType::bf16;
  return name == "f16" ? DType::f16 : DType::f32;
}

void fill_collectives(const Given& given, CommOptions& options) {
  for (const Collective collective : measured) {
    const bool one = given.collective == dist::collective_name(collective);
    if (!one && given.collective != "all") continue;
    if (collective == Collective::all_reduce && options.dtype != DType::f32) {
      if (one) {
        fail_input("--collective all_reduce sums only f32, --dtype is {}; expected f32",
                   given.dtype);
      }
      options.without_all_reduce = true;
    } else {
      options.collectives.push_back(collective);
    }
  }
}

int64_t buffer_bytes(const char* flag, const std::string& text) {
  return parse_bytes(flag, text, Zero::refused, most_buffer);
}

void fill(const Given& given, CommOptions& options) {
  CommSizes& sizes = options.sizes;
  sizes.min_bytes = buffer_bytes("--min-bytes", given.min_bytes);
  sizes.max_bytes = buffer_bytes("--max-bytes", given.max_bytes);
  if (sizes.min_bytes > sizes.max_bytes) {
    fail_input("--min-bytes is {}, expected at most --max-bytes, {}", given.min_bytes,
               given.max_bytes);
  }
  at_least("--factor", sizes.factor, 2);
  constexpr int64_t most_calls = 1'000'000;
  at_least("--groups", options.groups, 0);
  at_least("--iterations", options.iterations, 1);
  at_most("--iterations", options.iterations, most_calls);
  at_least("--warmup", options.warmup, 0);
  at_most("--warmup", options.warmup, most_calls);
  options.dtype = dtype(given.dtype);
  fill_collectives(given, options);
}

}  // namespace

CommCommandLine parse_comm_command_line(int argc, const char* const* argv) {
  CommCommandLine result;
  Given given;
  Flags app(
      "Measures time and bandwidth of collectives, and checks their results: mpirun -n N "
      "comm_bench",
      "comm_bench");
  add_measurement(app, given, result.options);
  add_buffers(app, given, result.options);
  add_device_options(app, result.options.devices);
  app.add_option("--json", result.options.json,
                 "Write JSON to FILE; with - print JSON in place of the table")
      ->compare(Compared::nothing)  // may differ between ranks, since only rank 0 writes the file
      ->group("Output");
  result.help = app.parse(argc, argv);
  result.settings = app.settings();
  if (result.help.empty()) fill(given, result.options);
  return result;
}

}  // namespace tessera::apps
