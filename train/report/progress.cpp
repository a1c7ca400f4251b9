#include "train/report/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string>

#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

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

Progress::Progress(int64_t steps, bool shows, std::string unit)
    : steps_(steps),
      unit_(std::move(unit)),
      shows_(shows),
      terminal_(shows && on_terminal()),
      begin_(std::chrono::steady_clock::now()) {}

void Progress::step(const StepLine& step) {
  if (!shows_) return;
  const int64_t done = step.step + 1;
  const bool tenth = step.step == 0 || done * 10 / steps_ != step.step * 10 / steps_;
  if (!terminal_ && !tenth && !step.skipped) return;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin_;
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
  if (done == steps_) clear_line();
}

void Progress::evaluation(int64_t step, const std::string& text) {
  if (!shows_) return;
  clear_line();
  spdlog::info("step {}/{}  {}", step, steps_, text);
}

void Progress::clear_line() {
  if (line_open_) fmt::print(stderr, "\n");
  line_open_ = false;
}

}  // namespace tessera::train
