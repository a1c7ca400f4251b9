#include "train/images/image_evaluation.h"

#include <array>
#include <cmath>
#include <vector>

#include "core/autograd.h"
#include "core/ops.h"
#include "data/images/image_input.h"

namespace tessera::train {
namespace {

constexpr int64_t counted = evaluation_counts;  // sum of losses, number of top1 and of top5 hits

struct BatchResult {
  float loss = 0;  // mean of the batch
  float first = 0;
  float among_five = 0;
};

BatchResult judge(const Tensor& logits, const Tensor& labels) {
  const Tensor wide = ops::convert(logits, DType::f32);
  BatchResult result{.loss = ops::cross_entropy(wide, labels).item()};
  const Tensor scores = wide.to_host();
  const Tensor targets = labels.to_host();
  const auto classes = static_cast<size_t>(scores.size(1));
  for (size_t row = 0; row < targets.values<int32_t>().size(); ++row) {
    const int64_t place = place_of_target(scores.values<float>().subspan(row * classes, classes),
                                          targets.values<int32_t>()[row]);
    result.first += place < 1 ? 1.0f : 0.0f;
    result.among_five += place < 5 ? 1.0f : 0.0f;
  }
  return result;
}

}  // namespace

int64_t place_of_target(std::span<const float> logits, int32_t target) {
  const auto index = static_cast<size_t>(target);
  int64_t before = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const bool earlier = logits[i] == logits[index] && i < index;
    const bool larger = !(logits[i] <= logits[index]);  // true for a NaN too
    before += i != index && (larger || earlier) ? 1 : 0;
  }
  return before;
}

ImageEvaluation evaluate_images(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                const data::ImageTransformOptions& transform,
                                const EvaluationWork& work, const dist::World& world) {
  const auto images = static_cast<double>(set->size());
  auto batches = std::make_shared<data::EvaluationBatches>(
      std::move(set), transform,
      data::EvaluationBatches::Share{.size = work.batch, .ranks = world.size, .rank = world.rank});
  const int64_t total = batches->total();
  std::vector<float> own(static_cast<size_t>(total * counted), 0.0f);
  model.eval();
  {
    const NoGrad no_grad;
    data::ImageInput input(batches, {.workers = work.workers});
    for (int64_t b = 0; b < batches->count(); ++b) {
      input.load(b);
      const BatchResult result = judge(model(input.images()), input.labels());
      const int64_t number = batches->number_of(b);
      if (number >= total) continue;  // repeated only to run as many forwards as other ranks
      float* const at = own.data() + number * counted;
      at[0] = result.loss * static_cast<float>(input.labels().elements());
      at[1] = result.first;
      at[2] = result.among_five;
    }
  }
  model.train();
  // A batch's results are 0 on all ranks but one, so that the sum over ranks is exact.
  const Tensor sums = Tensor::from({total * counted}, own);
  world.communicator->all_reduce(sums, {dist::Traffic::other}).wait();
  const Tensor results = sums.to_host();
  std::array<double, counted> sum{};
  for (int64_t i = 0; i < total * counted; ++i) {
    sum[static_cast<size_t>(i % counted)] += static_cast<double>(results.data<float>()[i]);
  }
  const auto share = [&](size_t i) { return static_cast<float>(sum[i] / images); };
  return {.loss = share(0), .top1 = share(1), .top5 = share(2)};
}

}  // namespace tessera::train
