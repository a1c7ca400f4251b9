#include "train/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include "core/text/step_number.h"

namespace tessera::train {
namespace {

bool is_terminal_of_parent(int descriptor) {
  std::error_code error;
  const auto target = std::filesystem::read_symlink(
      fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor), error);
  const std::string name = target.string();
  return !error && (name.starts_with("/dev/pts/") || name.starts_with("/dev/tty"));
}

std::string outcome(const StepLine& step) {
  if (step.skipped) {
    return fmt::format("skipped, gradients overflow at a loss scale of {:.0f}",
                       step.loss_scale.value_or(1));
  }
  return fmt::format("loss {:.4f}  norm {:.3f}  lr {:.2e}", step.loss, step.grad_norm, step.lr);
}

}  // namespace

bool on_terminal() {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr) {
    return is_terminal_of_parent(STDOUT_FILENO) && is_terminal_of_parent(STDERR_FILENO);
  }
  return ::isatty(STDOUT_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0;
}

void set_up_messages(bool shows) {
  auto logger = std::make_shared<spdlog::logger>(
      "tessera", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->set_level(shows ? spdlog::level::info : spdlog::level::off);
  spdlog::set_default_logger(std::move(logger));
}

std::string duration_text(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, seconds) + 0.5);
  const int64_t hours = total / 3600;
  const int64_t minutes = total / 60 % 60;
  if (hours > 0) return fmt::format("{}:{:02}:{:02}", hours, minutes, total % 60);
  return fmt::format("{}:{:02}", minutes, total % 60);
}

Progress::Progress(int64_t steps, bool shows, std::string unit, Clock::duration silence)
    : steps_(steps),
      unit_(std::move(unit)),
      shows_(shows),
      terminal_(shows && on_terminal()),
      silence_(silence),
      begin_(Clock::now()),
      last_step_(begin_),
      last_line_(begin_) {}

void Progress::step(const StepLine& step) {
  if (!shows_) return;
  const int64_t done = step_number(step.step);
  const bool tenth = step.step == 0 || done * 10 / steps_ != step.step * 10 / steps_;
  const Clock::time_point now = Clock::now();
  // A line is due if one more step as long as this one would make the silence too long.
  const bool due = now - last_line_ + (now - std::exchange(last_step_, now)) >= silence_;
  if (!terminal_ && !tenth && !due && !step.skipped) return;
  last_line_ = now;
  const std::chrono::duration<double> passed = now - begin_;
  const double left =
      passed.count() / static_cast<double>(done) * static_cast<double>(steps_ - done);
  const std::string text =
      fmt::format("step {}/{}  {}  {:.0f} {}/s  {:.1f} ms  {} left", done, steps_,
                  outcome(step), step.samples_per_s, unit_, step.step_ms, duration_text(left));
  if (!terminal_ || step.skipped) {
    clear_line();
    spdlog::info(text);
    return;
  }
  fmt::print(stderr, "\r{}\x1b[K", text);
  std::fflush(stderr);
  line_open_ = true;
  dist::set_line_open(true);
  if (done == steps_) clear_line();
}

void Progress::evaluation(int64_t step, const std::string& text) {
  if (!shows_) return;
  clear_line();
  last_line_ = Clock::now();
  spdlog::info("step {}/{}  {}", step, steps_, text);
}

void Progress::clear_line() {
  if (line_open_) fmt::print(stderr, "\n");
  line_open_ = false;
  dist::set_line_open(false);
}

}  // namespace tessera::train
