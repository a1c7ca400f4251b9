// Measures GPT training steps as bench/peers/gpt_step.py does: the same sizes, the same batches of
// a synthetic stream, AdamW with decay on matrices, clipping at 1, no dropout.
//
//   bench_gpt_step --preset micro --threads 2 --weights init.safetensors
//   mpirun -n 2 bench_gpt_step --preset micro --stage 3
//   bench_gpt_step --precision bf16 --recompute
//   bench_gpt_step --device cuda --preset gpt2 --context 1024 --batch 64 --precision bf16
//
// --batch is the number of sequences in a micro-batch. A step has one micro-batch for each rank,
// unless --micro-batches gives another number.
//
// Prints one JSON object with:
//
//   - the losses of all steps;
//   - the median and the least time of a step;
//   - the median time that a step waits for communication;
//   - the median time of the update at the end of a step;
//   - the peaks of the memory on the device (core/memory.h);
//   - the process's peak memory (VmHWM), at the end and right after the start;
//   - model_flops: the FLOPs of a step of all ranks, counted as nanoGPT does.
//
// The times and the peaks on the device leave out the warm-up steps.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/console/flags.h"
#include "apps/cli/model_options.h"
#include "core/context.h"
#include "core/cuda.h"
#include "core/text/json_line.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "models/gpt/gpt.h"
#include "models/gpt/gpt_weights.h"
#include "optim/zero_optimizer.h"
#include "train/plan/plan_gpt.h"
#include "train/tuned_file.h"

namespace {

using namespace tessera;

struct Options {
  std::string preset = "micro";
  // In the next five members, 0 means the default size (see sizes).
  int64_t layers = 0;
  int64_t heads = 0;
  int64_t width = 0;
  int64_t context = 0;
  int64_t batch = 0;
  int64_t micro_batches = 0;  // per step; 0: one per rank
  int64_t steps = 10;
  int64_t warmup = 2;
  int threads = 1;
  int stage = 2;
  int64_t bucket_bytes = optim::ZeroOptions{}.bucket_bytes;
  std::string reduction = "ordered";
  std::string overlap = "on";
  std::string graph = "off";
  apps::MemoryOptions memory;
  dist::DeviceOptions devices{.device = "cpu"};
  std::string tuned;
  std::string weights;
  std::string write_weights;
};

Options parse(int argc, char** argv) {
  Options options;
  apps::Flags app("Times GPT training steps", "bench_gpt_step");
  app.add_option("--preset", options.preset);
  app.add_option("--layers", options.layers);
  app.add_option("--heads", options.heads);
  app.add_option("--width", options.width);
  app.add_option("--batch", options.batch, "sequences in a micro-batch");
  app.add_option("--context", options.context);
  app.add_option("--micro-batches", options.micro_batches,
                 "micro-batches of a step (default: one per rank)");
  app.add_option("--steps", options.steps);
  app.add_option("--warmup", options.warmup);
  app.add_option("--threads", options.threads);
  app.add_option("--stage", options.stage);
  app.add_option("--bucket-bytes", options.bucket_bytes);
  app.add_option("--reduction", options.reduction)->one_of({"ordered", "fast"});
  app.add_option("--overlap", options.overlap)->one_of({"on", "off"});
  apps::add_graph_option(app, options.graph);
  apps::add_memory_options(app, options.memory);
  apps::add_recompute_option(app, options.memory);
  apps::add_loss_rows_option(app, options.memory);
  apps::add_device_options(app, options.devices);
  app.add_option("--tuned", options.tuned, "a table that tune wrote");
  app.add_option("--weights", options.weights, "safetensors, as the peer writes them");
  app.add_option("--write-weights", options.write_weights, "write the initial weights and end");
  const std::string help = app.parse(argc, argv);
  if (!help.empty()) {
    fmt::print("{}", help);
    std::exit(0);
  }
  if (options.steps < 1) fail_input("--steps {}, expected at least 1", options.steps);
  return options;
}

// Returns the model's sizes, and sets `batch` to the number of sequences in a micro-batch. As in
// bench/peers/gpt_step.py, a preset whose context is above 256 runs with a context of 256 and with
// 1 sequence in a micro-batch. Other presets run with 12 sequences. Flags override these sizes.
models::GptConfig sizes(const Options& options, int64_t& batch) {
  models::GptConfig config = models::GptConfig::preset(options.preset);
  const bool large = config.context > 256;
  if (large) config.context = 256;
  if (options.context > 0) config.context = options.context;
  if (options.layers > 0) config.layers = options.layers;
  if (options.heads > 0) config.heads = options.heads;
  if (options.width > 0) config.width = options.width;
  config.recompute = options.memory.recompute;
  config.loss_chunk_rows = options.memory.loss_rows;
  batch = options.batch > 0 ? options.batch : (large ? 1 : 12);
  return config;
}

// Returns the token at position p of the stream, in [0, vocab).
int32_t stream_token(int64_t p, int64_t vocab) {
  const auto hash = static_cast<uint32_t>(static_cast<uint64_t>(p) * 2654435761u);
  return static_cast<int32_t>((uint64_t{hash} * static_cast<uint64_t>(vocab)) >> 32);
}

struct TokenBatch {
  Tensor tokens;
  Tensor targets;
};

TokenBatch read(int64_t first_sequence, int64_t sequences, const models::GptConfig& config) {
  const int64_t context = config.context;
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i <= sequences * context; ++i) {
    tokens.push_back(stream_token(first_sequence * context + i, config.vocab));
  }
  const auto all = std::span<const int32_t>(tokens);
  const Shape shape{sequences, context};
  return {Tensor::from<int32_t>(shape, all.first(all.size() - 1)),
          Tensor::from<int32_t>(shape, all.subspan(1))};
}

int64_t peak_kib() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "VmHWM:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib;
  }
  fail("no VmHWM in /proc/self/status");
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

struct Timing {
  std::vector<double> ms;
  std::vector<double> exposed_ms;
  std::vector<double> update_ms;  // time in launch_step(), including its waits
  std::vector<std::string> losses;  // as JSON
};

/// Returns all batches that this rank reads, in the memory of the model's device. The batches are
/// made before the first step, so that no step's time includes them.
std::vector<TokenBatch> read_all(const Options& options, const models::Gpt& model,
                                 const Batch& batch, const dist::World& world) {
  std::vector<TokenBatch> batches;
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    for (int64_t i = 0; i < batch.micro_steps(world.size); ++i) {
      const int64_t index = std::min(i * world.size + world.rank, batch.micro_batches() - 1);
      batches.push_back(
          read(step * batch.global + index * batch.micro, batch.micro, model.config()));
    }
  }
  return batches;
}

// Runs the steps as train_gpt does: a step's result is read after the next step is launched, so
// that a GPU never waits for the host. On the CPU a launch returns when the step is done.
Timing run_steps(const Options& options, models::Gpt& model, optim::ZeroOptimizer& optimizer,
                 const Batch& batch, const dist::World& world) {
  const std::vector<TokenBatch> batches = read_all(options, model, batch, world);
  Timing timing;
  std::optional<optim::LaunchedStep> launched;
  const auto take_result = [&] {
    if (!launched) return;
    const optim::StepReport report = launched->get();
    timing.losses.push_back(json_number(report.loss));
    timing.exposed_ms.push_back(static_cast<double>(report.exposed_ns) / 1e6);
  };
  auto next_batch = batches.begin();
  TokenBatch input;
  const auto load = [&](const MicroBatch&) {
    const TokenBatch& next = *next_batch++;
    if (options.graph == "off" || !input.tokens.defined()) {
      input = next;
      return;
    }
    // A captured graph reads the memory of the first batch, so later batches are copied there.
    const int device = default_device().index;
    cuda::copy(device, input.tokens.raw(), next.tokens.raw(), next.tokens.bytes());
    cuda::copy(device, input.targets.raw(), next.targets.raw(), next.targets.bytes());
  };
  auto begin = std::chrono::steady_clock::now();
  for (int64_t step = 0; step < options.warmup + options.steps; ++step) {
    if (step == options.warmup) memory_ledger().reset_peaks();
    optimizer.micro_steps(step, batch, load,
                          [&] { return model.loss(input.tokens, input.targets); });
    const auto computed = std::chrono::steady_clock::now();
    const optim::LaunchedStep next = optimizer.launch_step();
    const std::chrono::duration<double, std::milli> update =
        std::chrono::steady_clock::now() - computed;
    take_result();
    launched = next;
    const auto end = std::chrono::steady_clock::now();
    const std::chrono::duration<double, std::milli> time = end - begin;
    begin = end;
    if (step < options.warmup) continue;
    timing.ms.push_back(time.count());
    timing.update_ms.push_back(update.count());
  }
  take_result();
  timing.exposed_ms.erase(timing.exposed_ms.begin(), timing.exposed_ms.begin() + options.warmup);
  optimizer.synchronize();
  return timing;
}

optim::ZeroOptions zero_options(const Options& options) {
  return {.stage = options.stage,
          .bucket_bytes = options.bucket_bytes,
          .overlap = options.overlap == "on",
          .reduction = options.reduction == "fast" ? optim::Reduction::fast
                                                   : optim::Reduction::ordered,
          .clip = 1.0f,
          .grad_shard = apps::sum_dtype(options.memory),
          .offload = apps::offload(options.memory),
          .graph = options.graph == "on",
          .group_of =
              [](const auto& named) { return named.parameter.shape().rank() > 1 ? 0 : 1; },
          .groups = {{.weight_decay = 0.0f}}};
}

// Returns the memory ledger's peaks as JSON members such as "activation_peak_bytes": the peaks of
// activations, workspace, parameters and the total.
std::string peaks() {
  const MemoryLedger& ledger = memory_ledger();
  return fmt::format(
      R"("activation_peak_bytes":{},"workspace_peak_bytes":{},"parameter_peak_bytes":{},)"
      R"("memory_peak_bytes":{})",
      ledger.peak(Category::activations), ledger.peak(Category::workspace),
      ledger.peak(Category::parameters), ledger.peak_total());
}

int bench(const Options& options, dist::World& world) {
  const int64_t start_kib = peak_kib();
  dist::choose_devices(world, options.devices);
  set_thread_count(options.threads);
  if (!options.tuned.empty()) train::use_tuned_file(options.tuned, world);
  int64_t micro = 0;
  models::Gpt model(sizes(options, micro));
  model.to(apps::parameter_dtype(options.memory));
  const int64_t count = options.micro_batches > 0 ? options.micro_batches : world.size;
  optim::ZeroOptimizer optimizer(
      model, optim::AdamW{.learning_rate = 3e-4f, .beta2 = 0.95f, .weight_decay = 0.1f}, world,
      zero_options(options));
  if (!options.weights.empty()) {
    const models::GptWeights weights(options.weights, model);
    optimizer.set_parameters(weights.source());
  }
  if (!options.write_weights.empty()) {
    models::GptWriter writer(options.write_weights, model);
    optimizer.for_each_parameter(
        [&](const auto& named, std::span<const float> values) { writer.write(named, values); });
    writer.commit();
    return 0;
  }
  const Timing timing = run_steps(options, model, optimizer, {micro * count, micro}, world);
  if (world.rank != 0) return 0;
  const int64_t tokens = micro * count * model.config().context;
  const double ms = median(timing.ms);
  fmt::print(R"({{"median_ms":{:.3f},"min_ms":{:.3f},"exposed_ms":{:.3f},"update_ms":{:.3f},)"
             R"("tokens_per_s":{:.0f},"model_flops":{:.6g},)"
             R"("vm_hwm_kib":{},"vm_hwm_start_kib":{},{},"ranks":{},"losses":[{}]}})"
             "\n",
             ms, *std::min_element(timing.ms.begin(), timing.ms.end()), median(timing.exposed_ms),
             median(timing.update_ms), static_cast<double>(tokens) / ms * 1e3,
             train::gpt_work(model.config(), micro * count, DType::f32).flops, peak_kib(),
             start_kib, peaks(), world.size, fmt::join(timing.losses, ","));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return dist::run(argc, argv, [&](dist::World& world) { return bench(parse(argc, argv), world); });
}
