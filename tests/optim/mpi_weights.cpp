// Weights go out of a model while its optimizer is at work, and not into it behind its back.
#include "core/ops.h"
#include "nn/layers.h"
#include "nn/weights_file.h"
#include "tests/support/catch.h"
#include "tests/support/delayed_communicator.h"
#include "tests/support/temporary_folder.h"
#include "tests/support/training.h"

namespace tessera::test {
namespace {

TEST_CASE("saved weights are those after the step, also where their gather is still under way") {
  const TemporaryFolder folder;
  dist::World world = job_world();
  world.communicator = std::make_shared<dist::DelayedCommunicator>(
      world.communicator, std::chrono::nanoseconds{}, std::chrono::milliseconds(100));
  nn::Linear model(32, 32);
  optim::ZeroOptimizer optimizer(model, optim::Sgd{.learning_rate = 1}, world,
                                 {.stage = 2, .bucket_bytes = 1024, .seed = 3});
  (void)optimizer.step(0, {.global = 8, .micro = 1}, [&](const MicroBatch& micro) {
    return ops::mean(model(Tensor::full({4, 32}, 1.0f + static_cast<float>(micro.index))));
  });
  nn::save_weights(folder.path("at_once"), model);
  optimizer.synchronize();
  nn::save_weights(folder.path("later"), model);
  CHECK(folder.read("at_once") == folder.read("later"));
  CHECK_THROWS_WITH(nn::load_weights(folder.path("later"), model),
                    Catch::Matchers::ContainsSubstring("belongs to an optimizer"));
}

}  // namespace
}  // namespace tessera::test
