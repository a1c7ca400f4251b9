// The steps of a training run: each is launched, logged and shown; now and then the model is
// evaluated. What is trained on what, the application says.
//
//   StepLoop loop(options, world, optimizer, log,
//                 {.unit = "tokens", .units_per_step = 12 * 64, .load = ..., .loss = ...,
//                  .forward = ..., .evaluate = ...});
//   loop.train();
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "apps/support/progress.h"
#include "apps/support/run_log.h"
#include "apps/support/run_report.h"
#include "dist/bootstrap.h"
#include "optim/zero_optimizer.h"

namespace tessera::apps {

struct StepWork {
  std::string unit;  // what speed counts
  int64_t units_per_step = 0;
  std::function<void(const MicroBatch&)> load;
  std::function<Tensor()> loss;
  /// A forward of any micro-batch, to find where its loss is not finite.
  std::function<void(const MicroBatch&)> forward;
  /// Evaluates after so many steps: a line of the log, and what the terminal shows.
  struct Evaluation {
    JsonObject line;
    std::string text;
  };
  std::function<Evaluation(int64_t)> evaluate;
  /// More members for a step's line of the log; asked when the step is launched.
  std::function<JsonObject(int64_t)> describe = [](int64_t) { return JsonObject(); };
};

/// What comes before a run holds anything: the trace's file must be writable, as what is saved must
/// be, which the application has checked; no rank has bad input; and ledgers count from here on.
/// The log is open on rank 0. Throws InputError. Collective.
std::unique_ptr<RunLog> begin_run(const RunOptions& options, const dist::World& world);

class StepLoop {
 public:
  /// All of these must outlive it.
  StepLoop(const RunOptions& options, const dist::World& world, optim::ZeroOptimizer& optimizer,
           RunLog& log, StepWork work);

  /// All steps. Throws on every rank where a loss or gradient is not finite. Collective.
  void train();
  const StepCount& count() const { return count_; }

 private:
  using Clock = std::chrono::steady_clock;
  // A step whose result is not asked for yet.
  struct Running {
    int64_t step;
    Clock::time_point begin;
    optim::LaunchedStep launched;
    Clock::time_point launch_end;
    JsonObject description;
  };

  void launch(int64_t step);
  void log_running();
  StepLine line_of(Running& running);
  [[noreturn]] void fail_together(int64_t step, const optim::NonFiniteError& error);

  const RunOptions& options_;
  const dist::World& world_;
  optim::ZeroOptimizer& optimizer_;
  RunLog& log_;
  StepWork work_;
  Progress progress_;
  std::optional<Running> running_;
  Clock::time_point last_end_;
  StepCount count_;
};

/// What ranks held and sent, beside what was planned: a line of the log, and tables. Collective.
void report_run(const optim::Plan& planned, const StepCount& count, const dist::World& world,
                RunLog& log, const std::function<void()>& before_tables);

}  // namespace tessera::apps
