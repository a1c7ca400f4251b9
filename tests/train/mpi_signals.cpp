// Tests that all ranks obey a signal to one rank after the step in which the signal comes.
#include <signal.h>

#include "tests/support/catch.h"
#include "tests/support/shared_folder.h"
#include "tests/support/tiny_training.h"
#include "train/step_loop.h"

namespace tessera::test {
namespace {

TEST_CASE("all ranks obey a signal to one rank after the step in which it comes") {
  const dist::World world = job_world();
  train::set_up_messages(false);
  // gradient_norms sends a step's notes earlier than launch_step does.
  for (const int64_t norms_every : {0, 1}) {
    CAPTURE(norms_every);
    const SharedFolder folder(world);
    const TinyRun run;
    models::Gpt model(run.model);
    const Training training = tiny_training(run, model);
    optim::ZeroOptimizer optimizer(model, training.rule, world, {.stage = 2, .seed = 3});
    train::RunLog log("");
    train::StepLoop loop({.steps = 6,
                          .batch = training.batch,
                          .norms_every = norms_every,
                          .checkpoints = {.folder = folder.path()}},
                         world, optimizer, log,
                         {.unit = "samples",
                          .units_per_step = training.batch.global,
                          .forward = [&](const MicroBatch& micro) {
                            const bool last_rank = world.rank == world.size - 1;
                            if (last_rank && micro.step == 1) ::raise(SIGUSR1);
                            if (last_rank && micro.step == 3) ::raise(SIGUSR2);
                            return training.loss(micro);
                          }});
    loop.train();
    CHECK(loop.stopped());
    CHECK(loop.count().steps == 4);
    CHECK(train::checkpoint_steps(folder.path()) == std::vector<int64_t>{4, 2});
  }
}

}  // namespace
}  // namespace tessera::test
