// Tests that the evaluation of an image classifier has the same bits on any number of ranks.
#include "tests/support/catch.h"
#include "tests/support/stored_images.h"
#include "tests/support/training.h"
#include "train/images/image_evaluation.h"

namespace tessera::test {
namespace {

TEST_CASE("an evaluation of images has the same bits on any number of ranks") {
  const SmallImageTask task = small_image_task();
  // The 22 images make 4 batches. With 3 ranks, rank 0 evaluates 2 batches and the other ranks one.
  // While rank 0 evaluates its second batch, the other ranks repeat a batch, which must not count.
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
