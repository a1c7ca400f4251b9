#include "train/step_loop.h"

#include <algorithm>
#include <exception>
#include <filesystem>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "core/random.h"
#include "core/text/step_number.h"
#include "core/trace.h"
#include "train/checkpoint/path_within.h"
#include "train/non_finite.h"

namespace tessera::train {
namespace {

// Throws if checkpoints and saves of weights are to be in the same folder. A checkpoint would
// replace the save of the same step, because both are folders with the name of the step.
void check_step_folders(const LoopOptions& options) {
  if (!options.checkpoints.wanted() || options.weights.every == 0) return;
  const std::string saves = std::filesystem::path(options.weights.path).parent_path().string();
  if (!is_same_path(saves.empty() ? "." : saves, options.checkpoints.folder)) return;
  fail(
      "train: {} is to hold checkpoints and the saves of {}, and both are in folders step-...; "
      "give one of them another folder",
      options.checkpoints.folder, options.weights.path);
}

double milliseconds(std::chrono::steady_clock::duration time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

}  // namespace

void run_to_end(StepLoop& loop, const RunFiles& files, const dist::World& world,
                const std::function<std::string()>& finish,
                const std::function<std::string()>& save) {
  // The first failure. All ranks have the same text, except that only rank 0 learns why the trace
  // was not written (try_to_write_trace).
  std::string failure;
  bool has_checkpoint = true;
  try {
    loop.train();
  } catch (const LastCheckpointError& error) {
    failure = error.what();
    has_checkpoint = false;
  } catch (const LastEvaluationError& error) {
    failure = error.what();
  }
  if (!loop.stopped()) {
    failure = first_failure(failure, finish());
  } else {
    // If the last checkpoint was not written, only a save of the weights keeps the result of the
    // steps since the previous checkpoint.
    if (!has_checkpoint && save) failure = first_failure(failure, save());
    failure = try_to_write_trace(files, world, failure);
  }
  failure = first_failure(failure, loop.failed_save());
  throw_failure(try_to_write_reports(files, world, failure), world);
}

std::string non_finite_evaluation(int64_t done, bool f16) {
  return fmt::format(
      "the evaluation after step {} is not finite: {}the weights or the data are invalid", done,
      f16 ? "activations overflow in fp16, or " : "");
}

StepLoop::StepLoop(const LoopOptions& options, const dist::World& world,
                   optim::ZeroOptimizer& optimizer, RunLog& log, StepWork work)
    : options_(options),
      world_(world),
      optimizer_(optimizer),
      log_(log),
      work_(std::move(work)),
      rows_before_(optimizer.row_counts()),
      progress_(options.steps, world.rank == 0, work_.unit),
      timeline_(options.timeline && options.steps_left() > 0
                    ? options.first_step + std::min<int64_t>(2, options.steps_left() - 1)
                    : -1) {
  // With fewer steps, the last checkpoint would have the state of a later step than its name says.
  TESSERA_CHECK(options.steps >= options.first_step,
                "train: {} steps, but the run goes on after step {}; expected at least {} steps",
                options.steps, options.first_step, options.first_step);
  // A rank that is told to end prints its last finished step. Until a step has finished after a
  // resume, this is the last step before the resume.
  dist::set_finished_step(options.first_step - 1);
  check_step_folders(options);
  if (options.checkpoints.wanted()) {
    checkpoints_ =
        std::make_unique<RunCheckpoints>(options.checkpoints, world, optimizer, log,
                                         CheckpointInfo{.best = options.best,
                                                        .run = std::move(work_.run),
                                                        .bits = std::move(work_.bits),
                                                        .weights = std::move(work_.weights)});
  }
  TESSERA_CHECK(work_.forward, "train: the loop has no forward");
  TESSERA_CHECK(!work_.load == !work_.loss,
                "train: the loop has only one of load and loss, expected both or neither");
  TESSERA_CHECK(work_.evaluate || options.eval_every == 0,
                "train: an evaluation every {} steps, but nothing that evaluates",
                options.eval_every);
  TESSERA_CHECK(work_.open_weights || !options.weights.wanted(),
                "train: weights are to be saved in steps, but nothing opens their file");
  TESSERA_CHECK(options.eval_every > 0 || !options.weights.best,
                "train: the best weights are to be saved, but there is no evaluation");
  if (options.weights.wanted()) {
    saves_ = std::make_unique<WeightSaves>(options.weights, world, optimizer, log,
                                           work_.open_weights, options.best);
    // If no step is left, the last checkpoint too records the best evaluation only if it was kept.
    if (checkpoints_) checkpoints_->set_best(saves_->best());
  }
  if (work_.load) return;
  // Makes `load` and `loss` from `forward`. CUDA graphs do not allow this: a graph would also
  // capture the loading of data, and compute the captured micro-batch in every step.
  TESSERA_CHECK(!optimizer.options().graph,
                "train: with CUDA graphs the loop needs load and loss, not only forward");
  work_.load = [this](const MicroBatch& micro) { loaded_ = micro; };
  work_.loss = [this] { return work_.forward(loaded_); };
}

void StepLoop::train() {
  int64_t done = 0;
  try {
    done = run_steps();
    // The last gathers may still be in flight, and the caller may read parameters after train().
    optimizer_.synchronize();
  } catch (...) {
    // Unwinding would wait until this rank's thread has written its part of a checkpoint. Until
    // then nobody would learn of the error, and the other ranks would wait for this rank.
    if (world_.size > 1 && checkpoints_ && checkpoints_->writes_shard()) dist::end_failed_body();
    throw;
  }
  timeline_.end();
  count_.timeline = timeline_.window();
  if (checkpoints_) write_last_checkpoint(done);
  if (!last_score_finite_) {
    throw LastEvaluationError(non_finite_evaluation(done, optimizer_.scales_losses()));
  }
}

void StepLoop::write_last_checkpoint(int64_t done) {
  // The end of this function destroys `checkpoints`, which restores the program's own signal
  // handlers. If the program has none, SIGTERM then ends it, and SIGUSR1 and SIGUSR2 are ignored.
  const std::unique_ptr<RunCheckpoints> checkpoints = std::move(checkpoints_);
  const std::string path = checkpoints->finish(done, skipped());
  if (stopped_) {
    const bool resumes = options_.checkpoints.resumes_newest;
    spdlog::info("stopped after step {} of {}; the same command{} goes on from {}", done,
                 options_.steps, resumes ? "" : " with --resume latest", path);
  } else {
    spdlog::info("checkpoint: {}", path);
  }
}

int64_t StepLoop::run_steps() {
  for (int64_t step = options_.first_step; step < options_.steps; ++step) {
    launch(step);
    const int64_t done = step + 1;
    const bool last = done == options_.steps;
    const bool evaluates = options_.eval_every > 0 && (last || done % options_.eval_every == 0);
    // The combined notes of all ranks. They are known without waiting for the step, and are equal
    // on every rank.
    const uint8_t notes = running_->launched.notes();
    const bool saves = checkpoints_ && checkpoints_->saves(done, notes);
    const bool saves_weights = saves_ && saves_->due(done, evaluates);
    stopped_ = checkpoints_ && !last && RunCheckpoints::stops(notes);
    // A step that may still run on the GPU is logged during the next step, unless its result is
    // needed at once.
    const bool looks = last || evaluates || saves || saves_weights || stopped_;
    if (looks || !running_->launched.deferred()) log_running();
    // evaluate() also saves the weights if they are the best so far.
    if (evaluates) evaluate(done);
    if (saves_) saves_->after_step(done, done - skipped());
    if (saves_) count_.saves = saves_->count();
    if (last || stopped_) count_rows();
    // The checkpoint comes after the saves, because it records the evaluation whose weights are
    // saved as the best.
    if (saves_ && checkpoints_) checkpoints_->set_best(saves_->best());
    // After the last step, and after a step at which a signal ends the run, train() writes the
    // checkpoint and waits for it.
    if (stopped_) return done;
    if (checkpoints_ && !last) checkpoints_->after_step(done, skipped(), notes);
  }
  return options_.steps;
}

void StepLoop::count_rows() {
  count_.rows = optimizer_.row_counts();
  // Subtracts the rows that earlier loops with the same optimizer have counted. A table that joined
  // the optimizer after this loop was made gets a new entry in rows_before_, with counts of 0.
  for (auto& [name, counts] : count_.rows) counts -= rows_before_[name];
}

void StepLoop::evaluate(int64_t done) {
  StepWork::Evaluation evaluation = [&] {
    const trace::Scope scope("evaluation");
    return work_.evaluate(done);
  }();
  // Weights are saved before the log line is written, because the line has "best" only if the save
  // succeeded.
  if (saves_ && saves_->keep_best(done, done - skipped(), evaluation.score)) {
    evaluation.line.add("best", true);
    evaluation.text += "  the best so far";
  }
  if (evaluation.after) evaluation.after();
  log_.write(evaluation.line);
  progress_.evaluation(done, evaluation.text);
  if (evaluation.finite()) return;
  // The score is not finite. After the last step, train() throws an error for this reason. After an
  // earlier step, the run continues with a warning.
  last_score_finite_ = done < options_.steps;
  if (last_score_finite_) {
    spdlog::warn("{}", non_finite_evaluation(done, optimizer_.scales_losses()));
  }
}

// Launches a step. Then logs the previous step, if it was not logged yet, so that the GPU computes
// while the host logs. The previous step is logged even if the launch fails.
void StepLoop::launch(int64_t step) {
  const auto begin = Clock::now();
  std::optional<optim::LaunchedStep> launched;
  JsonObject description;
  int64_t checkpoint_wait_ns = 0;
  std::map<std::string, float> norms;
  timeline_.launch(step);
  try {
    optimizer_.micro_steps(step, options_.batch, work_.load, work_.loss);
    // The end of the step, which begins with the norms or launch_step, sends the notes. They are
    // set only now, so that a signal that came in the step is obeyed after it.
    if (checkpoints_) optimizer_.set_notes(checkpoints_->notes());
    if (wants_norms(step)) norms = optimizer_.gradient_norms();
    // The update in launch_step changes the training state that a checkpoint may still be reading.
    if (checkpoints_) checkpoint_wait_ns = checkpoints_->wait_for_reads();
    launched = optimizer_.launch_step();
    description = work_.describe(step);
  } catch (...) {
    log_running();
    throw;
  }
  log_running();
  running_ = {step,
              begin,
              *launched,
              Clock::now(),
              std::move(description),
              checkpoint_wait_ns,
              std::move(norms)};
}

void StepLoop::log_running() {
  if (!running_) return;
  const JsonObject description = running_->description;
  const std::map<std::string, float> norms = std::move(running_->norms);
  const StepLine line = line_of(*running_);
  running_.reset();
  timeline_.ended(line.step);
  log_.write(step_line(line, work_.unit).append(description));
  if (!norms.empty()) log_.write(norms_line(line.step, norms));
  progress_.step(line);
  count_.steps = line.step + 1 - options_.first_step;
  if (line.skipped) ++count_.skipped;
}

StepLine StepLoop::line_of(Running& running) {
  const int64_t step = running.step;
  optim::StepReport report;
  // step_ms needs the time at which the step ended. If the result is ready already, the step counts
  // as ended when launch() returned. If it is not ready, the step ends when get() returns.
  const bool was_ready = running.launched.ready();
  try {
    report = running.launched.get();
  } catch (const optim::NonFiniteError& error) {
    fail_together(step, error);
  }
  for (const std::string& name : report.without_gradient) {
    spdlog::warn("step {}: {} got no gradient, so it was not updated; this is reported only once",
                 step_number(step), name);
  }
  const Clock::time_point end = was_ready ? running.launch_end : Clock::now();
  // The step's time begins with its launch, or with the end of the previous step if that was later.
  const double ms = milliseconds(end - std::max(running.begin, last_end_));
  last_end_ = end;
  return {
      .step = step,
      .loss = report.loss,
      .grad_norm = report.grad_norm,
      .lr = report.learning_rate,
      .loss_scale = optimizer_.scales_losses() ? std::optional(report.loss_scale) : std::nullopt,
      .skipped = report.skipped,
      .samples_per_s = static_cast<double>(work_.units_per_step) / (ms / 1000),
      .step_ms = ms,
      .comm_exposed_ms = static_cast<double>(report.exposed_ns) / 1e6,
      .checkpoint_wait_ms = static_cast<double>(running.checkpoint_wait_ns) / 1e6};
}

// Called on every rank. All ranks repeat the micro-batch to find the operation where the loss
// became non-finite, because a forward pass may be collective. Then rank 0 throws, and its
// exception ends the job. The other ranks wait in the barrier until then.
void StepLoop::fail_together(int64_t step, const optim::NonFiniteError& error) {
  std::string text = error.what();
  if (error.micro_batch >= 0) {
    const MicroBatch micro{.step = step,
                           .index = error.micro_batch,
                           .first_sample = error.micro_batch * options_.batch.micro,
                           .samples = options_.batch.micro};
    // With this dropout state, dropout draws the same masks as in the failed step.
    dropout_state() = {
        .seed = optimizer_.options().seed, .step = step, .first_sample = micro.first_sample};
    try {
      text += "; first at " + first_non_finite([&] { work_.forward(micro); });
    } catch (const std::exception& failure) {
      // This rank throws immediately, even if it is not rank 0, because other ranks may be waiting
      // for this rank in the forward pass.
      fail("{}; the search for the operation failed: {}", text, failure.what());
    }
  }
  if (world_.rank != 0) world_.communicator->barrier();
  fail("{}", text);
}

void report_run(const optim::Plan& planned, const StepCount& count, const dist::World& world,
                RunLog& log, const std::function<void()>& before_tables) {
  // Measures before the reports are gathered, because gathering causes traffic too.
  const RankReport report = measure(planned, count, world);
  const GatheredReports all = gather_reports(report, world);
  if (count.timeline) {
    const JsonObject line = timeline_line(*count.timeline, world);
    if (world.rank == 0) log.write(line);
  }
  log.write(JsonObject()
                .add("type", "summary")
                .add("steps", count.steps)
                .add("skipped", count.skipped)
                .add("equal", all.differing.empty())
                .raw("ranks", fmt::format("[{}]", fmt::join(all.json, ","))));
  trace::enable(false);  // the trace does not cover before_tables()
  before_tables();
  if (world.rank != 0 || (all.differing.empty() && !shows_messages())) return;
  fmt::print("{}", report.table());
  if (all.differing.empty()) {
    fmt::print("\nplanned and measured are equal on all ranks ({})\n", world.size);
  } else {
    if (all.differing.front() != 0) {
      fmt::print("\nrank {}\n{}", all.differing.front(), all.first_table);
    }
    fmt::print("\nplanned and measured DIFFER on ranks {}\n", fmt::join(all.differing, ", "));
  }
}

}  // namespace tessera::train
