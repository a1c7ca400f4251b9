// Tests that the evaluation of an image classifier has the same bits on any number of ranks.
#include <set>

#include "core/convolution_choices.h"
#include "tests/support/catch.h"
#include "tests/support/stored_images.h"
#include "tests/support/training.h"
#include "train/images/image_evaluation.h"
#include "train/images/plan_image.h"

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

TEST_CASE("a GPU's algorithms are chosen for evaluations that only a report makes") {
  const Device device = default_device();
  if (device.is_cpu() || cuda::convolution_library_version() == 0) {
    TESSERA_SKIP("cuDNN's algorithms are chosen on CUDA");
  }
  // No other test has batches of 13 or 11 images. A process keeps its choices until it ends.
  const train::TrainingRun run{
      .rule = optim::Sgd{},
      .zero = {},
      .loop = {.steps = 1, .batch = {.global = 13, .micro = 13}, .eval_every = 0}};
  const train::PlannedImages images{
      .config = models::ResNetConfig{.blocks = {1, 1},
                                     .width = 8,
                                     .small_images = true,
                                     .sizes = {.side = 8, .channels = 3, .classes = 7}},
      .shape = {8, 8, 3},
      .validation = 24};
  train::choose_algorithms(run, images, device);
  std::set<int64_t> sizes;
  for (const auto& choice : cuda::convolution_choices(device.index)) {
    sizes.insert(choice.sizes.images);
  }
  CHECK(sizes.contains(13));
  CHECK(sizes.contains(11));
}

}  // namespace
}  // namespace tessera::test
