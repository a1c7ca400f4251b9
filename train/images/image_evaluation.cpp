#include "train/images/image_evaluation.h"

#include <array>
#include <limits>
#include <vector>

#include "core/ops.h"
#include "core/text/number_text.h"
#include "train/images/evaluation_pass.h"

namespace tessera::train {
namespace {

constexpr int64_t counted = evaluation_counts;  // per batch: summed loss, top-1 hits, top-5 hits

struct BatchResult {
  float loss = 0;  // mean over the batch
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
    if (!(logits[i] < std::numeric_limits<float>::infinity())) {
      return std::numeric_limits<int64_t>::max();
    }
    const bool earlier = logits[i] == logits[index] && i < index;
    before += logits[i] > logits[index] || earlier ? 1 : 0;
  }
  return before;
}

ImageEvaluation evaluate_images(nn::Module& model, std::shared_ptr<const data::ImageSet> set,
                                const data::ImageTransformOptions& transform,
                                const EvaluationWork& work, const dist::World& world) {
  const auto images = static_cast<double>(set->size());
  const auto judged = [](const Tensor& logits, const Tensor& labels, std::span<float> results) {
    const BatchResult result = judge(logits, labels);
    results[0] = result.loss * static_cast<float>(labels.elements());
    results[1] = result.first;
    results[2] = result.among_five;
  };
  const std::vector<float> results =
      evaluation_pass(model, std::move(set), transform, work, world, counted, false, judged);
  std::array<double, counted> sum{};
  for (size_t i = 0; i < results.size(); ++i) {
    sum[i % counted] += static_cast<double>(results[i]);
  }
  const auto share = [&](size_t i) {
    return without_nan_sign(static_cast<float>(sum[i] / images));
  };
  return {.loss = share(0), .top1 = share(1), .top5 = share(2)};
}

}  // namespace tessera::train
