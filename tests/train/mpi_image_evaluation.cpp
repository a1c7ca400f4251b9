// Tests that the evaluation of an image classifier has the same bits on any number of ranks.
#include "tests/support/catch.h"
#include "tests/support/stored_images.h"
#include "tests/support/training.h"
#include "train/images/image_evaluation.h"

namespace tessera::test {
namespace {

TEST_CASE("an evaluation of images has the same bits on any number of ranks") {
  const SmallImageTask task = small_image_task();
  // With 3 ranks there are 2 batches for the first one, and the others repeat the last batch.
  const auto evaluate = [&](const dist::World& world) {
    return train::evaluate_images(*task.model, task.set, task.transform, {.batch = 6}, world);
  };
  const train::ImageEvaluation alone = evaluate(lone_world());
  const train::ImageEvaluation together = evaluate(job_world());
  CHECK(together.loss == alone.loss);
  CHECK(together.top1 == alone.top1);
  CHECK(together.top5 == alone.top5);
}

}  // namespace
}  // namespace tessera::test
