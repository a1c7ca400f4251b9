#include "train/report/progress.h"

#include <cstdlib>
#include <limits>
#include <optional>
#include <sstream>

#include <spdlog/spdlog.h>

#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"

using namespace tessera;
using namespace tessera::train;

namespace {

// Returns the text that `body` writes to stderr. Captures the text at the file descriptor.
template <class Body>
std::string said(Body&& body) {
  const test::TemporaryFolder folder;
  std::fflush(stderr);
  const int before = ::dup(STDERR_FILENO);
  std::FILE* const file = std::fopen(folder.path("said").c_str(), "w");
  ::dup2(::fileno(file), STDERR_FILENO);
  body();
  std::fflush(stderr);
  ::dup2(before, STDERR_FILENO);
  ::close(before);
  std::fclose(file);
  return folder.read("said");
}

int64_t lines_of(int64_t steps, Progress::Clock::duration silence) {
  const std::string text = said([&] {
    set_up_messages(true);
    Progress progress(steps, true, "tokens", silence);
    for (int64_t step = 0; step < steps; ++step) progress.step({.step = step});
  });
  set_up_messages(false);
  return std::ranges::count(text, '\n');
}

}  // namespace

TEST_CASE("in a pipe, progress prints a line every tenth of the way and after long silence") {
  CHECK(lines_of(100, std::chrono::hours(1)) == 11);
  CHECK(lines_of(5, std::chrono::hours(1)) == 5);
  CHECK(lines_of(100, std::chrono::seconds(0)) == 100);
}

TEST_CASE("a NaN is printed without sign") {
  const float nan = -std::numeric_limits<float>::quiet_NaN();
  const std::string text = said([&] {
    set_up_messages(true);
    Progress progress(1, true, "tokens");
    progress.step({.step = 0, .loss = nan, .grad_norm = nan});
  });
  set_up_messages(false);
  CHECK(text.find("loss nan  norm nan") != std::string::npos);
}

TEST_CASE("a skipped step says whether loss or only gradients overflow, or data was missing") {
  const auto line_of = [](float loss, float norm, std::optional<float> scale) {
    return said([&] {
      set_up_messages(true);
      Progress progress(1, true, "tokens");
      progress.step(
          {.step = 0, .loss = loss, .grad_norm = norm, .loss_scale = scale, .skipped = true});
    });
  };
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const std::string overflow = line_of(2, infinity, 8);
  const std::string infinite = line_of(infinity, infinity, 8);
  const std::string empty = line_of(0, 0, 8);
  const std::string unscaled = line_of(0, 0, std::nullopt);
  set_up_messages(false);
  CHECK(overflow.find("skipped, gradients overflow at a loss scale of 8") != std::string::npos);
  CHECK(infinite.find("skipped, the loss is not finite (inf) at a loss scale of 8") !=
        std::string::npos);
  CHECK(empty.find("skipped, no micro-batch had data") != std::string::npos);
  CHECK(unscaled.find("skipped, no micro-batch had data") != std::string::npos);
}

TEST_CASE("quiet messages leave only warnings and errors") {
  const std::string text = said([] {
    set_up_messages({.quiet = true});
    CHECK_FALSE(shows_messages());
    Progress progress(2, true, "tokens");
    progress.step({.step = 0});
    progress.evaluation(1, "validation loss 1");
    spdlog::info("information");
    spdlog::warn("a warning");
  });
  set_up_messages(false);
  CHECK(text == "a warning\n");
}

TEST_CASE("control characters of a message are escaped") {
  const std::string text = said([] {
    set_up_messages(true);
    spdlog::warn("a\x1b[1m\nb \u7528");
  });
  set_up_messages(false);
  CHECK(text == "a\\u001b[1m\\u000ab \u7528\n");
}

TEST_CASE("colours are used only if asked for") {
  const auto warned = [](bool color) {
    return said([&] {
      set_up_messages({.color = color});
      spdlog::warn("a warning");
    });
  };
  CHECK(warned(false) == "a warning\n");
  CHECK(warned(true).find("\x1b[") != std::string::npos);
  set_up_messages(false);
}

TEST_CASE("a bar has the given width, in UTF-8 and without") {
  ::setenv("LC_ALL", "C.UTF-8", 1);
  CHECK(bar(0, 4) == "    ");
  CHECK(bar(0.5, 4) == "██  ");
  CHECK(bar(0.53125, 4) == "██▏ ");
  CHECK(bar(1, 4) == "████");
  CHECK(bar(7, 2) == "██");
  CHECK(bar(-1, 2) == "  ");
  ::setenv("LC_ALL", "C", 1);
  CHECK(bar(0.5, 4) == "##  ");
  CHECK(bar(1, 4) == "####");
  ::unsetenv("LC_ALL");
}
