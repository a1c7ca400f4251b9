#include "apps/zero_plan_options.h"

#include <charconv>

#include <fmt/format.h>

#include "apps/cli/command_line.h"
#include "apps/console/console.h"
#include "apps/console/flags.h"
#include "apps/console/quantity.h"
#include "core/error.h"
#include "models/gpt/gpt_sizes.h"

namespace tessera::apps {
namespace {

constexpr int64_t most_ranks = 1'000'000;

// The flags as given. An empty value stands for a default, or means that a part of the plan is left
// out.
struct Given {
  ModelOptions model;
  BatchOptions batch;
  BucketOptions buckets;
  MemoryOptions memory;
  std::string optimizer = "adamw";
  int64_t ranks = 1;
  int64_t ranks_per_node = 1;
  int64_t threads = 0;
  std::string stage = "all";
  std::string overlap = "on";
  dist::DeviceOptions devices{.device = "cpu", .comm = "nccl"};
  bool shared_cores = false;
  bool saves = false;
  std::optional<int64_t> eval_every;
  std::string table;
  std::optional<int64_t> lookups;
  std::optional<float> zipf;
  std::string fits, staging, flops, bandwidth, latency, memory_bandwidth, node_bandwidth;
};

void add_ranks(Flags& app, Given& given) {
  const char* group = "Distribution";
  app.add_option("--ranks", given.ranks, "Number of ranks, from 1 to 1,000,000")
      ->capture_default_str()
      ->group(group);
  app.add_option("--ranks-per-node", given.ranks_per_node, "Number of ranks that share a node")
      ->capture_default_str()
      ->group(group);
  app.add_option("--stage", given.stage, "ZeRO stage: 0, 1, 2, 3 or all")
      ->capture_default_str()
      ->one_of({"all", "0", "1", "2", "3"})
      ->group(group);
  app.add_option("--threads", given.threads,
                 "CPU threads of a rank, on which its workspace depends (default: as in train_gpt)")
      ->group(group);
  add_bucket_options(app, given.buckets, gpt_default_texts());
  add_overlap_option(app, given.overlap);
  app.add_option("--device", given.devices.device, "Device that each rank computes on: cpu or cuda")
      ->capture_default_str()
      ->one_of({"cpu", "cuda"})
      ->group(group);
  app.add_option("--comm", given.devices.comm,
                 "With CUDA, how ranks communicate: nccl; or mpi, through host memory")
      ->capture_default_str()
      ->one_of({"nccl", "mpi"})
      ->group(group);
  app.add_option("--staging", given.staging,
                 "Bytes of memory that a rank's transport holds, such as 1MiB or 0 (default: those "
                 "of Tessera's transport)")
      ->group(group);
}

void add_table(Flags& app, Given& given) {
  const char* group = "Table";
  app.add_option("--table", given.table,
                 "Plan a table of ROWSxWIDTH values, row-sparse and dense, instead of a GPT")
      ->group(group);
  app.add_option("--lookups", given.lookups, "With --table: rows that a micro-batch looks up")
      ->group(group);
  app.add_option("--zipf", given.zipf,
                 "With --table: exponent of the lookups' Zipf distribution (default: 0, uniform)")
      ->group(group);
}

// Reads "1000000x64".
TableOptions parse_table(const std::string& text) {
  TableOptions table;
  const char* const end = text.data() + text.size();
  const auto rows = std::from_chars(text.data(), end, table.rows);
  const bool has_width = rows.ec == std::errc() && rows.ptr != end && *rows.ptr == 'x';
  const auto width =
      has_width ? std::from_chars(rows.ptr + 1, end, table.width) : std::from_chars_result{end, {}};
  constexpr int64_t most = int64_t{1} << 31;
  const bool fits = table.rows >= 1 && table.rows < most && table.width >= 1 && table.width < most;
  if (!has_width || width.ec != std::errc() || width.ptr != end || !fits) {
    fail_input("--table is {}, expected ROWSxWIDTH, such as 1000000x64, each below 2^31", text);
  }
  return table;
}

// Refuses flags that the plan of an embedding table (--table) would ignore.
void check_no_gpt(const Given& given) {
  const ModelOptions& model = given.model;
  const std::vector<std::string> flags =
      given_flags({{"--preset", model.preset.has_value()},
                   {"--layers", model.layers.has_value()},
                   {"--heads", model.heads.has_value()},
                   {"--width", model.width.has_value()},
                   {"--context", model.context.has_value()},
                   {"--vocab", model.vocab.has_value()},
                   {"--recompute", given.memory.recompute},
                   {"--loss-rows", given.memory.loss_rows > 0},
                   {"--eval-every", given.eval_every.has_value()},
                   {"--threads", given.threads > 0},
                   {"--memory", !given.fits.empty()},
                   {"--flops", !given.flops.empty()}});
  if (!flags.empty()) fail_input("{} is for a GPT, not for --table", flags.front());
}

std::optional<TableOptions> table_options(const Given& given) {
  if (given.table.empty()) {
    if (given.lookups || given.zipf) {
      fail_input("--lookups and --zipf are for --table, which is not given");
    }
    return std::nullopt;
  }
  TableOptions table = parse_table(given.table);
  if (!given.lookups) fail_input("--table needs --lookups, the rows that a micro-batch looks up");
  at_least("--lookups", *given.lookups, 1);
  at_most("--lookups", *given.lookups, int64_t{1} << 31);
  table.lookups = *given.lookups;
  table.zipf = given.zipf.value_or(0);
  if (!(table.zipf >= 0 && table.zipf <= 10)) {
    fail_input("--zipf is {}, expected from 0 to 10", table.zipf);
  }
  check_no_gpt(given);
  return table;
}

void add_machine(Flags& app, Given& given) {
  const char* group = "Machine";
  app.add_option("--memory", given.fits,
                 "Memory of a rank, such as 80GB or 24GiB; prints how large a model fits")
      ->group(group);
  app.add_option(
         "--flops", given.flops,
         "Floating-point operations per second of a rank, such as 400T; prints the time of a step")
      ->group(group);
  app.add_option("--bandwidth", given.bandwidth,
                 "Bytes per second that a rank sends to other nodes, such as 25GB")
      ->group(group);
  app.add_option("--latency", given.latency, "Latency of a message, such as 5us (default: 0)")
      ->group(group);
  app.add_option("--node-bandwidth", given.node_bandwidth,
                 "Bytes per second that a rank sends within its node (default: as --bandwidth)")
      ->group(group);
  app.add_option("--memory-bandwidth", given.memory_bandwidth,
                 "Bytes per second that a rank moves in memory, in the update and in element-wise "
                 "work (default: moving memory takes no time)")
      ->group(group);
  app.add_flag("--shared-cores", given.shared_cores,
               "The ranks have no spare cores, so communication takes time from computing")
      ->group(group);
}

std::optional<optim::MachineRates> machine_rates(const Given& given) {
  if (given.flops.empty()) {
    const std::vector<std::string> flags =
        given_flags({{"--bandwidth", !given.bandwidth.empty()},
                     {"--latency", !given.latency.empty()},
                     {"--node-bandwidth", !given.node_bandwidth.empty()},
                     {"--memory-bandwidth", !given.memory_bandwidth.empty()},
                     {"--shared-cores", given.shared_cores}});
    if (!flags.empty()) {
      fail_input("{} is for the time of a step, which needs --flops too", flags.front());
    }
    return std::nullopt;
  }
  if (given.bandwidth.empty() && given.ranks > 1) {
    fail_input("--flops asks for the time of a step, which needs --bandwidth too");
  }
  const auto rate = [](const char* flag, const std::string& text) {
    return text.empty() ? 0 : parse_rate(flag, text);
  };
  return optim::MachineRates{
      .flops = parse_flops("--flops", given.flops),
      .bandwidth = rate("--bandwidth", given.bandwidth),
      .latency = given.latency.empty() ? 0 : parse_seconds("--latency", given.latency),
      .memory_bandwidth = rate("--memory-bandwidth", given.memory_bandwidth),
      .node_bandwidth = rate("--node-bandwidth", given.node_bandwidth),
      .ranks_per_node = given.ranks_per_node,
      .shared_cores = given.shared_cores};
}

int64_t state_tensors(const std::string& optimizer) {
  if (optimizer == "adagrad") return std::ssize(optim::Adagrad{}.state_names());
  if (optimizer == "sgd") return std::ssize(optim::Sgd{.momentum = 0.9f}.state_names());
  return std::ssize(optim::AdamW{}.state_names());
}

void fill(const Given& given, PlanOptions& options) {
  options.table = table_options(given);
  const TrainDefaults defaults = train_defaults(preset_of(given.model));
  check_loss_rows(given.memory);
  options.model = model_config(given.model);
  options.name = models::gpt_name(options.model);
  options.model.recompute = given.memory.recompute;
  options.model.loss_chunk_rows = given.memory.loss_rows;
  options.dtype = parameter_dtype(given.memory);
  options.optimizer = given.optimizer;
  at_least("--ranks", given.ranks, 1);
  at_most("--ranks", given.ranks, most_ranks);
  at_least("--ranks-per-node", given.ranks_per_node, 1);
  at_most("--ranks-per-node", given.ranks_per_node, most_ranks);
  options.ranks_per_node = given.ranks_per_node;
  at_least("--threads", given.threads, 0);
  at_most("--threads", given.threads, 4096);
  options.threads = static_cast<int>(given.threads);
  options.device = train::plan_device(given.devices);
  // On a CPU, the optimizer's state is on the host anyway, so a run offloads nothing.
  const bool offloads = offload(given.memory) == optim::Offload::optimizer;
  options.idle_offload = offloads && options.device.device.is_cpu();
  options.run = {.ranks = given.ranks,
                 .bucket_bytes = bucket_bytes(given.buckets, defaults),
                 .overlap = given.overlap == "on",
                 .reduction = reduction(given.buckets),
                 .batch = batch_sizes(given.batch, defaults),
                 .state_tensors = state_tensors(given.optimizer),
                 .sum_dtype = sum_dtype(given.memory),
                 .offload = offloads && !options.idle_offload,
                 .saves = given.saves,
                 .device = options.device.device,
                 .staged = options.device.staged(),
                 .staging_bytes = options.device.staging_bytes(given.ranks),
                 .header_bytes = options.device.header_bytes()};
  if (!given.staging.empty()) {
    // 0 is allowed: some transports need no staging memory.
    options.run.staging_bytes = parse_bytes("--staging", given.staging, Zero::allowed);
  }
  const int64_t eval_every = given.eval_every.value_or(defaults.eval_every);
  at_least("--eval-every", eval_every, 0);
  options.evaluates = eval_every > 0;
  options.stages = {0, 1, 2, 3};
  if (given.stage != "all") options.stages = {std::stoi(given.stage)};
  if (!given.fits.empty()) options.memory = parse_bytes("--memory", given.fits);
  options.rates = machine_rates(given);
}

}  // namespace

PlanCommandLine parse_plan_command_line(int argc, const char* const* argv) {
  PlanCommandLine result;
  Given given;
  Flags app(
      "Plans the memory, traffic and time of training a GPT with ZeRO, on any number of ranks",
      "zero_plan");
  add_model_options(app, given.model);
  add_batch_options(app, given.batch, "Training", gpt_default_texts());
  add_optimizer_option(app, given.optimizer, "Training");
  add_memory_options(app, given.memory);
  add_recompute_option(app, given.memory);
  add_loss_rows_option(app, given.memory);
  app.add_flag("--saves", given.saves,
               "Plan a run that saves weights while it goes on, as with train_gpt --save-every")
      ->group("Memory");
  app.add_option(
         "--eval-every", given.eval_every,
         fmt::format("Steps between evaluations, as in train_gpt; 0: none; all other numbers "
                     "give the same plan (default: {})",
                     gpt_default_texts().eval_every))
      ->group("Memory");
  add_table(app, given);
  add_ranks(app, given);
  add_machine(app, given);
  app.add_option("--json", result.options.json,
                 "Write JSON to FILE; with - print JSON in place of the tables")
      ->group("Output");
  result.help = app.parse(argc, argv);
  if (result.help.empty()) fill(given, result.options);
  return result;
}

}  // namespace tessera::apps
