#include "train/images/evaluation_pass.h"

#include <algorithm>
#include <utility>

#include "core/autograd.h"
#include "data/images/image_input.h"

namespace tessera::train {

std::vector<float> evaluation_pass(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                   const data::ImageTransformOptions& transform,
                                   const EvaluationWork& work, const dist::World& world,
                                   int64_t values, bool per_image, const JudgeBatch& judge) {
  auto batches = std::make_shared<data::EvaluationBatches>(
      std::move(set), transform,
      data::EvaluationBatches::Share{.size = work.batch, .ranks = world.size, .rank = world.rank});
  const int64_t of_batch = per_image ? values * work.batch : values;
  const int64_t total = batches->total();
  std::vector<float> own(static_cast<size_t>(total * of_batch), 0.0f);
  {
    const nn::Evaluating evaluating(model);
    const NoGrad no_grad;
    data::ImageInput input(batches, {.workers = work.workers});
    for (int64_t b = 0; b < batches->count(); ++b) {
      input.load(b);
      std::vector<float> results(static_cast<size_t>(of_batch), 0.0f);
      judge(model(input.images()), input.labels(), results);
      const int64_t number = batches->number_of(b);
      if (number >= total) continue;  // a repeated batch, which another rank counts
      std::ranges::copy(results, own.begin() + number * of_batch);
    }
  }
  // A batch's results are 0 on all ranks except one, so that the sum over ranks is exact.
  const Tensor sums = Tensor::from({total * of_batch}, own);
  world.communicator->all_reduce(sums, {dist::Traffic::other}).wait();
  const Tensor results = sums.to_host();
  const auto all = results.values<float>();
  return {all.begin(), all.end()};
}

}  // namespace tessera::train
