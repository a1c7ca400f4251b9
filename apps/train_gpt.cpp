// Trains a GPT with ZeRO on any number of ranks.
//
//   train_gpt --data shakespeare.txt                          one rank
//   mpirun -n 4 train_gpt --data shakespeare.txt --stage 2    four; the same losses, bit for bit
//
// Wiring only: options -> data, model, optimizer -> steps -> weights, tables, sample. What reads
// the model, every rank does alike, because at stage 3 no rank can do it alone; one of them talks.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "apps/support/evaluate.h"
#include "apps/support/gpt_weights.h"
#include "apps/support/non_finite.h"
#include "apps/support/plan_table.h"
#include "apps/support/progress.h"
#include "apps/support/run_log.h"
#include "apps/support/run_report.h"
#include "apps/support/sample.h"
#include "apps/support/token_data.h"
#include "apps/support/token_input.h"
#include "apps/support/trace_file.h"
#include "apps/support/train_options.h"
#include "apps/support/tuned_file.h"
#include "core/cuda.h"
#include "core/gemm.h"
#include "core/output_file.h"
#include "core/random.h"
#include "core/trace.h"
#include "dist/bootstrap.h"
#include "dist/device_choice.h"
#include "models/gpt.h"
#include "optim/plan.h"
#include "optim/zero_optimizer.h"

namespace tessera::apps {
namespace {

using Clock = std::chrono::steady_clock;

double milliseconds(Clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

TokenData open_data(const TrainOptions& options, const dist::World& world) {
  TokenData data({.path = options.data,
                  .validation_path = options.val_data,
                  .context = options.model.context,
                  .vocab = options.model.vocab,
                  .seed = options.seed,
                  .global_batch = options.batch.global,
                  .evaluates = options.eval_every > 0});
  data.check_vocabulary(world.rank, world.size);
  return data;
}

// What is written at the end must be writable before the work begins.
void check_destinations(const TrainOptions& options, const dist::World& world) {
  if (world.rank != 0) return;
  if (!options.save.empty()) check_gpt_destination(options.save);
  if (!options.trace.empty()) check_writable(options.trace);
}

// One training run of a rank: what its steps need, together.
class Run {
 public:
  Run(const TrainOptions& options, dist::World& world)
      : options_(options),
        world_(world),
        talks_(world.rank == 0),
        model_(options.model),
        data_(open_data(options, world)) {
    model_.to(parameter_dtype(options.memory));
    set_thread_count(threads_per_rank(options.threads, world.local_size));
    std::unique_ptr<GptWeights> weights;
    if (!options.init.empty()) weights = std::make_unique<GptWeights>(options.init, model_);
    check_destinations(options, world);
    // A rank with bad input ends the job here, before the log replaces an older one.
    world.communicator->barrier();
    log_ = std::make_unique<RunLog>(talks_ ? options.log : "");
    trace::enable(!options.trace.empty());

    memory_ledger(default_device()).reset_peaks();
    world.communicator->traffic().reset();
    input_ = std::make_unique<TokenInput>(
        data_, TokenInput::Sizes{options.batch.micro, options.model.context});
    optimizer_ = std::make_unique<optim::ZeroOptimizer>(model_, update_rule(options), world,
                                                        zero_options(options));
    if (weights) {
      optimizer_->set_parameters(
          [&](const nn::NamedParameter& named, int64_t begin, std::span<float> out) {
            weights->read(named, begin, out);
          });
    }
  }

  void train() {
    announce();
    Progress progress(options_.steps, talks_);
    for (int64_t step = 0; step < options_.steps; ++step) {
      launch(step, progress);
      const int64_t done = step + 1;
      const bool last = done == options_.steps;
      const bool evaluates =
          options_.eval_every > 0 && (last || done % options_.eval_every == 0);
      // A GPU's step is logged while it computes the next one.
      if (last || evaluates || !running_->launched.deferred()) log_running(progress);
      if (evaluates) {
        const float loss = evaluate(
            model_, data_.validation(),
            {.batches = options_.eval_batches, .sequences = options_.batch.micro}, world_);
        log_->write(eval_line(done, loss));
        progress.evaluation(done, loss);
      }
    }
    optimizer_->synchronize();
  }

  void finish() {
    const optim::Plan planned =
        plan_run(options_, model_, plan_device(world_), world_.size, options_.stage, world_.rank);
    const RankReport report = measure(planned, count_, world_);
    const GatheredReports all = gather_reports(report, world_);
    if (!options_.trace.empty()) write_trace(options_.trace, world_);
    if (talks_) log_->write(summary(all));
    if (!options_.save.empty()) save();
    print_sample();
    if (talks_) print_report(report, all);
  }

 private:
  void announce() {
    const int64_t parameters = model_.parameter_count();
    log_->write(header_line(options_, world_, parameters, thread_count()));
    spdlog::info("{}: {} parameters in {}, stage {}, {} rank{} x {} thread{} ({}, {} reduction)",
                 options_.preset, grouped(parameters), options_.memory.precision, options_.stage,
                 world_.size, world_.size == 1 ? "" : "s", thread_count(),
                 thread_count() == 1 ? "" : "s", world_.communicator->name(),
                 reduction_name(options_.reduction));
    announce_device();
    spdlog::info("{}: {} tokens to train on, {} to validate", options_.data,
                 grouped(data_.training().size()), grouped(data_.validation().size()));
    if (options_.batch.micro_batches() % world_.size != 0) {
      spdlog::warn("{} micro-batches on {} ranks: some wait; a --micro-batch of {} shares evenly",
                   options_.batch.micro_batches(), world_.size, even_micro_batch());
    }
  }

  void announce_device() const {
    const Device device = world_.communicator->device();
    if (!device.is_cpu()) {
      spdlog::info("on {}", cuda::device_name(device.index));
      return;
    }
    if (!cpu::has_fast_gemm(parameter_dtype(options_.memory))) {
      spdlog::warn("this CPU has no instructions for products in {}: they are computed in fp32, "
                   "which is correct, but slower than --precision fp32",
                   options_.memory.precision);
    }
    if (options_.memory.offload == "optimizer") {
      spdlog::info("--offload optimizer: a CPU's state is on the host anyway");
    }
  }

  // The largest micro-batch, up to the present one, of which every rank gets as many.
  int64_t even_micro_batch() const {
    const auto [global, micro] = options_.batch;
    for (int64_t size = micro; size > 1; --size) {
      if (global % size == 0 && global / size % world_.size == 0) return size;
    }
    return 1;
  }

  optim::LaunchedStep train_on(int64_t step) {
    optimizer_->micro_steps(
        step, options_.batch, [&](const optim::MicroBatch& micro) { input_->load(micro); },
        [&] { return model_.loss(input_->tokens(), input_->targets()); });
    return optimizer_->launch_step();
  }

  // Launches a step, and logs the one before it if that is still to do, also where this one fails.
  void launch(int64_t step, Progress& progress) {
    const auto begin = Clock::now();
    std::optional<optim::LaunchedStep> launched;
    try {
      launched = train_on(step);
    } catch (...) {
      log_running(progress);
      throw;
    }
    log_running(progress);
    running_ = {step, begin, *launched, Clock::now()};
  }

  void log_running(Progress& progress) {
    if (!running_) return;
    const StepLine line = line_of(*running_);
    running_.reset();
    log_->write(step_line(line));
    progress.step(line);
    count_ = {.steps = line.step + 1, .skipped = count_.skipped + (line.skipped ? 1 : 0)};
  }

  // A step whose result is not asked for yet.
  struct Running {
    int64_t step;
    Clock::time_point begin;
    optim::LaunchedStep launched;
    Clock::time_point launch_end;
  };

  StepLine line_of(Running& running) {
    const int64_t step = running.step;
    optim::StepReport report;
    // What need not be waited for ended about when its launch did; the rest ends now.
    const bool was_ready = running.launched.ready();
    try {
      report = running.launched.get();
    } catch (const optim::NonFiniteError& error) {
      fail_together(step, error);
    }
    for (const std::string& name : report.without_gradient) {
      spdlog::warn("step {}: {} got no gradient, and no update; this is said once", step, name);
    }
    const Clock::time_point end = was_ready ? running.launch_end : Clock::now();
    // Without the time in which the step before it was still running.
    const double ms = milliseconds(end - std::max(running.begin, last_end_));
    last_end_ = end;
    const bool scaled = parameter_dtype(options_.memory) == DType::f16;
    return {.step = step,
            .loss = report.loss,
            .grad_norm = report.grad_norm,
            .lr = report.learning_rate,
            .loss_scale = scaled ? std::optional(report.loss_scale) : std::nullopt,
            .skipped = report.skipped,
            .tokens_per_s = static_cast<double>(options_.batch.global * options_.model.context) /
                            (ms / 1000),
            .step_ms = ms,
            .comm_exposed_ms = static_cast<double>(report.exposed_ns) / 1e6};
  }

  // Every rank comes here. All repeat the micro-batch to find where its loss went wrong; then one
  // says so, which ends the others while they wait.
  [[noreturn]] void fail_together(int64_t step, const optim::NonFiniteError& error) {
    std::string text = error.what();
    if (error.micro_batch >= 0) {
      const optim::MicroBatch micro{.step = step,
                                    .index = error.micro_batch,
                                    .first_sample = error.micro_batch * options_.batch.micro,
                                    .samples = options_.batch.micro};
      dropout_state() = {
          .seed = options_.seed, .step = step, .first_sample = micro.first_sample};
      const auto sequences = data_.read(micro);
      text += "; first at " + first_non_finite([&] {
                model_.loss(sequences.tokens, sequences.targets);
              });
    }
    if (!talks_) world_.communicator->barrier();
    fail("{}", text);
  }

  // No rank holds the whole model: its tensors come by one after the other.
  void save() {
    std::unique_ptr<GptWriter> writer;
    if (talks_) writer = std::make_unique<GptWriter>(options_.save, model_);
    optimizer_->for_each_parameter(
        [&](const nn::NamedParameter& named, std::span<const float> values) {
          if (writer) writer->write(named, values);
        });
    if (writer) writer->commit();
  }

  JsonObject summary(const GatheredReports& all) const {
    return JsonObject()
        .add("type", "summary")
        .add("steps", count_.steps)
        .add("skipped", count_.skipped)
        .add("equal", all.differing.empty())
        .raw("ranks", fmt::format("[{}]", fmt::join(all.json, ",")));
  }

  void print_sample() {
    if (options_.sample == 0) return;
    const bool bytes = data_.training().file->is_text();
    const auto print = [&](const std::string& text) {
      if (talks_) std::fwrite(text.data(), 1, text.size(), stdout);
    };
    print("--- sample\n");
    sample(model_, {default_prompt(options_.model, bytes)},
           {.tokens = options_.sample, .seed = options_.seed},
           [&](int32_t token) { print(token_text(token, bytes)); });
    print("\n---\n\n");
  }

  void print_report(const RankReport& report, const GatheredReports& all) const {
    fmt::print("{}", report.table());
    if (all.differing.empty()) {
      fmt::print("\nplanned and measured are equal on all ranks ({})\n", world_.size);
    } else {
      fmt::print("\nplanned and measured DIFFER on ranks {}\n", fmt::join(all.differing, ", "));
    }
  }

  const TrainOptions& options_;
  dist::World& world_;
  bool talks_;  // one rank prints and writes
  models::Gpt model_;
  TokenData data_;
  std::unique_ptr<TokenInput> input_;
  std::unique_ptr<RunLog> log_;
  std::unique_ptr<optim::ZeroOptimizer> optimizer_;
  std::optional<Running> running_;
  Clock::time_point last_end_;
  StepCount count_;
};

std::string plan_text(const TrainOptions& options, const dist::World& world) {
  set_thread_count(threads_per_rank(options.threads, world.local_size));
  models::Gpt model(options.model);
  model.to(parameter_dtype(options.memory));
  return plan_table(options, model, world.size);
}

int run(int argc, char** argv, dist::World& world) {
  set_up_messages(world.rank == 0);
  const auto [options, help] = parse_command_line(argc, argv);
  if (!help.empty() || options.plan) {
    if (world.rank == 0) fmt::print("{}", help.empty() ? plan_text(options, world) : help);
    return 0;
  }
  dist::choose_devices(world, options.devices);
  if (!options.tuned.empty()) use_tuned_file(options.tuned, world);
  Run training(options, world);
  training.train();
  training.finish();
  return 0;
}

}  // namespace
}  // namespace tessera::apps

int main(int argc, char** argv) {
  return tessera::dist::run(argc, argv, [&](tessera::dist::World& world) {
    return tessera::apps::run(argc, argv, world);
  });
}
