// Tests that the library refuses options of a run if they would make the run's checkpoints wrong,
// or remove them.
#include <signal.h>

#include <string>

#include "core/error.h"
#include "models/gpt/gpt.h"
#include "tests/support/catch.h"
#include "tests/support/signal_handler.h"
#include "tests/support/temporary_folder.h"
#include "train/step_loop.h"

using namespace tessera;
using namespace tessera::train;
using test::handler_of;

namespace {

/// Makes a StepLoop with these options. Returns why it was refused.
std::string refusal(int64_t steps, int64_t first_step, const CheckpointOptions& checkpoints) {
  const dist::World world{.communicator = dist::single_communicator()};
  models::Gpt model({.layers = 1, .heads = 1, .width = 4, .context = 4, .vocab = 5});
  optim::ZeroOptimizer optimizer(model, optim::AdamW{}, world, {});
  RunLog log("");
  const LoopOptions options{.steps = steps,
                            .batch = {.global = 2, .micro = 2},
                            .checkpoints = checkpoints,
                            .first_step = first_step};
  return test::message_of<Error>([&] {
    const StepLoop loop(options, world, optimizer, log,
                        {.unit = "samples", .units_per_step = 2, .forward = [](const MicroBatch&) {
                           return Tensor();
                         }});
  });
}

}  // namespace

TEST_CASE("a run of fewer steps than are done is refused") {
  const test::TemporaryFolder folder;
  CHECK(refusal(100, 200, {.folder = folder.path("run")}) ==
        "train: 100 steps, but the run goes on after step 200; expected at least 200 steps");
  CHECK(refusal(200, 200, {.folder = folder.path("run")}) == "nothing was thrown");
}

TEST_CASE("a run that would keep none of its checkpoints is refused, and handles no signals") {
  const test::TemporaryFolder folder;
  const auto before = handler_of(SIGUSR2);
  CHECK(refusal(1, 0, {.folder = folder.path("run"), .keep = 0}) ==
        "checkpoints: 0 of the newest ones are to be kept, expected at least 1");
  CHECK(handler_of(SIGUSR2) == before);
  CHECK(refusal(1, 0, {.folder = folder.path("run"), .keep = 1}) == "nothing was thrown");
}
