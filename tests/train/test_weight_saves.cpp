// Tests what a resumed run does with the best evaluation that its checkpoint records.
// mpi_saving.cpp tests the saves of several ranks.
#include "train/weight_saves.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <spdlog/sinks/ostream_sink.h>
#include <spdlog/spdlog.h>

#include "core/ops.h"
#include "nn/layers.h"
#include "tests/support/catch.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"
#include "train/step_loop.h"

using namespace tessera;
using namespace tessera::train;

namespace {

/// Makes WeightSaves for a run whose evaluations measure `now`. The checkpoint has a best
/// evaluation that measured `before`. Returns the messages, and "kept" if the evaluation is kept.
std::string resumed(const std::string& before, const std::string& now, bool best = true) {
  const test::TemporaryFolder folder;
  std::filesystem::create_directory(folder.path("best"));
  std::ofstream(folder.path("best/w")) << "weights";
  const dist::World world = test::lone_world();
  nn::Linear model(4, 4);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {});
  RunLog log("");
  std::ostringstream text;
  const auto logger = spdlog::default_logger();
  spdlog::set_default_logger(std::make_shared<spdlog::logger>(
      "test", std::make_shared<spdlog::sinks::ostream_sink_st>(text)));
  spdlog::default_logger()->set_pattern("%v");
  const WeightSaves saves({.path = folder.path("w"), .best = best, .evaluated = now}, world,
                          optimizer, log, nullptr,
                          BestEvaluation{.step = 2, .value = 1, .evaluated = before});
  spdlog::set_default_logger(logger);
  return text.str() + (saves.best() ? "kept" : "");
}

}  // namespace

TEST_CASE("a resumed run drops a best evaluation that has measured something else") {
  CHECK(resumed("a loss", "a loss") == "kept");
  CHECK(resumed("a loss", "an error") ==
        "the best evaluation so far, of step 2, measured a loss, but this run measures an error, "
        "so earlier evaluations no longer count as the best\n");
  CHECK(resumed("a loss", "") ==
        "the best evaluation so far, of step 2, measured a loss, but this run does not say what it "
        "measures, so earlier evaluations no longer count as the best\n");
  // A checkpoint of an earlier version does not say what was measured.
  CHECK(resumed("", "an error") == "kept");
  // A run that saves no best weights compares nothing.
  CHECK(resumed("a loss", "an error", false) == "kept");
}

TEST_CASE("if no step is left, the last checkpoint lacks a best evaluation that was dropped") {
  const test::TemporaryFolder folder;
  const dist::World world = test::lone_world();
  set_up_messages(false);
  nn::Linear model(4, 4);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{}, world, {});
  RunLog log("");
  StepLoop loop({.steps = 2,
                 .batch = {.global = 1, .micro = 1},
                 .eval_every = 1,
                 .checkpoints = {.folder = folder.path("saved")},
                 .weights = {.path = folder.path("w"), .best = true, .evaluated = "an error"},
                 .first_step = 2,
                 .best = BestEvaluation{.step = 2, .value = 1, .evaluated = "a loss"}},
                world, optimizer, log,
                {.unit = "samples",
                 .units_per_step = 1,
                 .forward =
                     [&](const MicroBatch&) {
                       return ops::mean(model.forward(Tensor::full({1, 4}, 1)));
                     },
                 .evaluate = [](int64_t) { return StepWork::Evaluation(); },
                 .open_weights = [](const std::string&, int64_t) { return WeightsSink(); }});
  loop.train();
  CHECK_FALSE(find_checkpoint(folder.path("saved"), world)->manifest().best.has_value());
}
