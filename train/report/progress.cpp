#include "train/report/progress.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <spdlog/sinks/ansicolor_sink.h>
#include <spdlog/spdlog.h>

#include "core/memory.h"
#include "core/text/control_character.h"
#include "core/text/lower_case.h"
#include "core/text/number_text.h"
#include "core/text/step_number.h"

namespace tessera::train {
namespace {

bool colored = false;

// Returns the path of the file behind a descriptor of mpirun, which is this process's parent.
std::string file_of_parent(int descriptor) {
  std::error_code error;
  const auto target =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", ::getppid(), descriptor), error);
  return error ? "" : target.string();
}

bool is_terminal_of_parent(int descriptor) {
  const std::string name = file_of_parent(descriptor);
  return name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
}

bool under_mpirun() { return std::getenv("OMPI_COMM_WORLD_SIZE") != nullptr; }

// Returns the columns of the terminal on stderr, or on mpirun's stderr; 100 if unknown.
int64_t terminal_columns() {
  const auto columns_of = [](int terminal) -> int64_t {
    winsize size{};
    constexpr int64_t unknown = 100;
    return ::ioctl(terminal, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : unknown;
  };
  if (!under_mpirun()) return columns_of(STDERR_FILENO);
  const int terminal =
      ::open(file_of_parent(STDERR_FILENO).c_str(), O_RDONLY | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  const int64_t columns = columns_of(terminal);  // `unknown` if there is no terminal
  if (terminal >= 0) ::close(terminal);
  return columns;
}

// True if the locale of the environment has UTF-8. LC_ALL overrides LC_CTYPE, and both override
// LANG.
bool shows_utf8() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* const value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    // A modifier may follow the character set, as in "de_DE.utf8@euro".
    const std::string set =
        lower_case(std::string(value).substr(0, std::string_view(value).find('@')));
    return set.ends_with("utf-8") || set.ends_with("utf8");
  }
  return false;
}

std::string memory_text(int64_t bytes) {
  constexpr double mib = 1 << 20;
  const double size = static_cast<double>(bytes) / mib;
  return size < 1024 ? fmt::format("{:.0f} MiB", size) : fmt::format("{:.2f} GiB", size / 1024);
}

// Escapes control characters, which may be in a path, so that every message is one line and no
// terminal obeys them.
class EscapingSink : public spdlog::sinks::ansicolor_stderr_sink_mt {
 public:
  using spdlog::sinks::ansicolor_stderr_sink_mt::ansicolor_stderr_sink_mt;
  void log(const spdlog::details::log_msg& message) override {
    const std::string text =
        with_escaped_controls({message.payload.data(), message.payload.size()});
    spdlog::details::log_msg escaped = message;
    escaped.payload = text;
    spdlog::sinks::ansicolor_stderr_sink_mt::log(escaped);
  }
};

std::string outcome(const StepLine& step) {
  if (step.skipped) {
    // An overflow leaves a loss or norm that is not finite. Both are 0 if no rank had data.
    if (std::isfinite(step.loss) && std::isfinite(step.grad_norm)) {
      return "skipped, no micro-batch had data";
    }
    // Gradients of a loss that is not finite mean nothing, so only the loss is named then.
    std::string why = "gradients overflow";
    if (!std::isfinite(step.loss)) {
      why = fmt::format("the loss is not finite ({})", without_nan_sign(step.loss));
    }
    return fmt::format("skipped, {} at a loss scale of {:.0f}", why, step.loss_scale.value_or(1));
  }
  return fmt::format("loss {:.4f}  norm {:.3f}  lr {:.2e}", without_nan_sign(step.loss),
                     without_nan_sign(step.grad_norm), step.lr);
}

}  // namespace

bool on_terminal() {
  if (under_mpirun()) {
    return is_terminal_of_parent(STDOUT_FILENO) && is_terminal_of_parent(STDERR_FILENO);
  }
  return ::isatty(STDOUT_FILENO) != 0 && ::isatty(STDERR_FILENO) != 0;
}

void set_up_messages(const Messages& messages) {
  auto sink = std::make_shared<EscapingSink>(messages.color ? spdlog::color_mode::always
                                                            : spdlog::color_mode::never);
  sink->set_color(spdlog::level::info, sink->reset);
  auto logger = std::make_shared<spdlog::logger>("tessera", std::move(sink));
  logger->set_pattern(messages.color ? "%^%v%$" : "%v");
  logger->set_level(!messages.shows  ? spdlog::level::off
                    : messages.quiet ? spdlog::level::warn
                                     : spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  colored = messages.color;
}

bool shows_messages() { return spdlog::should_log(spdlog::level::info); }

std::string bar(double done, int64_t width) {
  constexpr const char* parts[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
  done = std::clamp(done, 0.0, 1.0);
  if (!shows_utf8()) {
    const auto filled = static_cast<size_t>(done * static_cast<double>(width));
    return std::string(filled, '#') + std::string(static_cast<size_t>(width) - filled, ' ');
  }
  const auto eighths = static_cast<int64_t>(done * static_cast<double>(8 * width));
  std::string text;
  for (int64_t i = 0; i < eighths / 8; ++i) text += "█";
  text += parts[eighths % 8];
  const int64_t filled = (eighths + 7) / 8;
  return text + std::string(static_cast<size_t>(width - filled), ' ');
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
      shows_(shows && shows_messages()),
      terminal_(shows_ && on_terminal()),
      silence_(silence),
      begin_(Clock::now()),
      last_step_(begin_),
      last_line_(begin_) {}

void Progress::step(const StepLine& step) {
  if (!shows_) return;
  if (first_ < 0) first_ = step.step;
  const int64_t done = step_number(step.step);
  const bool tenth = step.step == 0 || done * 10 / steps_ != step.step * 10 / steps_;
  const Clock::time_point now = Clock::now();
  // A line is due if the time since the last line would reach `silence_` by the end of the next
  // step. The next step is assumed to take as long as this one.
  const bool due = now - last_line_ + (now - std::exchange(last_step_, now)) >= silence_;
  if (!terminal_ && !tenth && !due && !step.skipped) return;
  last_line_ = now;
  const std::chrono::duration<double> passed = now - begin_;
  const double shown = static_cast<double>(step.step - first_ + 1);
  const std::string left =
      duration_text(passed.count() / shown * static_cast<double>(steps_ - done));
  if (!terminal_ || step.skipped) {
    clear_line();
    spdlog::info("step {}/{}  {}  {:.0f} {}/s  {:.1f} ms  {} left", done, steps_, outcome(step),
                 step.samples_per_s, unit_, step.step_ms, left);
    return;
  }
  rewrite_line(step, left);
  if (done == steps_) clear_line();
}

// The bar gets the columns that the text leaves free, but at most 30. On a narrow terminal, parts
// of the text are left out, because a line that wraps cannot be rewritten.
void Progress::rewrite_line(const StepLine& step, const std::string& left) {
  const int64_t done = step_number(step.step);
  const double share = static_cast<double>(done) / static_cast<double>(steps_);
  const std::string before = fmt::format("step {}/{} ", done, steps_);
  const int64_t peak = memory_ledger(default_device()).peak_total();
  const std::string percent = fmt::format(" {:3.0f} %  ", 100 * share);
  const std::string speed = fmt::format("  {:.0f} {}/s", step.samples_per_s, unit_);
  const std::string memory = "  " + memory_text(peak);
  const std::string end = fmt::format("  {} left", left);
  const std::string choices[] = {
      percent + outcome(step) + speed + memory + end, percent + outcome(step) + speed + end,
      percent + fmt::format("loss {:.4f}", without_nan_sign(step.loss)) + end};
  const int64_t columns = terminal_columns() - 1 - std::ssize(before);
  constexpr int64_t least_bar = 5;
  std::string after = choices[0];
  for (const std::string& choice : choices) {
    after = choice;
    if (columns - std::ssize(after) >= least_bar) break;
  }
  const int64_t room = columns - std::ssize(after);
  const std::string filled = room > 0 ? bar(share, std::min<int64_t>(room, 30)) : "";
  if (room < 0) after.resize(static_cast<size_t>(std::max<int64_t>(0, std::ssize(after) + room)));
  const std::string line = fmt::format("\r{}{}{}{}{}\x1b[K", before, colored ? "\x1b[36m" : "",
                                       filled, colored ? "\x1b[0m" : "", after);
  // std::fputs is used because fmt::print throws if the terminal is gone. The run must go on, at
  // least until it has saved a checkpoint.
  std::fputs(line.c_str(), stderr);
  std::fflush(stderr);
  line_open_ = true;
  dist::set_line_open(true);
}

void Progress::evaluation(int64_t step, const std::string& text) {
  if (!shows_) return;
  clear_line();
  last_line_ = Clock::now();
  spdlog::info("step {}/{}  {}", step, steps_, text);
}

void Progress::clear_line() {
  if (line_open_) std::fputs("\n", stderr);
  line_open_ = false;
  dist::set_line_open(false);
}

}  // namespace tessera::train
