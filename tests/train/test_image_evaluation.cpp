#include "train/images/image_evaluation.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/autograd.h"
#include "tests/support/catch.h"
#include "tests/support/stored_images.h"
#include "tests/support/tensors.h"
#include "tests/support/training.h"
#include "train/images/image_report.h"

namespace tessera::train {
namespace {

/// Returns the logits of one image, from a forward pass of this image alone.
std::vector<double> logits_alone(const test::SmallImageTask& task, int64_t index) {
  const NoGrad no_grad;
  const auto& [height, width, channels] = task.transform.shape;
  const auto& [mean, std] = task.transform.norm;
  data::ImageMemory memory;
  const data::ImageView image = task.set->read(index, memory);
  const Tensor input = Tensor::empty({1, height, width, channels}, DType::f32, Device{});
  const std::span<float> values = input.values<float>();
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t channel = i % static_cast<size_t>(channels);
    values[i] = (static_cast<float>(image.pixels[i]) / 255 - mean[channel]) / std[channel];
  }
  return test::doubles((*task.model)(input.to(default_device())).to_host());
}

TEST_CASE("a target's place counts larger logits, and equal logits of earlier classes") {
  const std::vector<float> logits = {1, 3, 2, 3};
  CHECK(place_of_target(logits, 1) == 0);
  CHECK(place_of_target(logits, 3) == 1);
  CHECK(place_of_target(logits, 0) == 3);
}

TEST_CASE("a row with a logit of NaN or infinity has no target among the first five") {
  // With five classes or fewer, even the last place would count as a hit.
  for (const float spoilt : {NAN, -NAN, INFINITY}) {
    const std::vector<float> logits = {1, 3, 2, spoilt};
    for (const int32_t target : {0, 1, 2, 3}) CHECK(place_of_target(logits, target) >= 5);
  }
  CHECK(place_of_target(std::vector<float>{1, -INFINITY}, 1) == 1);
}

TEST_CASE("an evaluation of images equals a plain loop over the images") {
  const test::SmallImageTask task = test::small_image_task();
  double loss = 0;
  int64_t first = 0;
  int64_t among_five = 0;
  task.model->eval();
  for (int64_t i = 0; i < task.set->size(); ++i) {
    const std::vector<double> logits = logits_alone(task, i);
    const double target = logits.at(static_cast<size_t>(task.set->label(i)));
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    loss += std::log(sum) - target;
    const auto larger = std::ranges::count_if(logits, [&](double logit) { return logit > target; });
    first += larger < 1 ? 1 : 0;
    among_five += larger < 5 ? 1 : 0;
  }
  REQUIRE(task.set->size() == 22);
  REQUIRE(first > 0);
  REQUIRE(among_five > first);
  REQUIRE(among_five < 22);
  // The last of the four batches is smaller, and must not count as much as the others.
  const ImageEvaluation result =
      evaluate_images(*task.model, task.set, task.transform, {.batch = 6}, test::lone_world());
  CHECK(result.loss == Catch::Approx(loss / 22).epsilon(1e-4));
  CHECK(result.top1 == static_cast<float>(static_cast<double>(first) / 22));
  CHECK(result.top5 == static_cast<float>(static_cast<double>(among_five) / 22));
  CHECK_FALSE(task.model->training());  // the mode before the evaluation
}

TEST_CASE("predictions are logged only if all scores are finite") {
  const test::SmallImageTask task = test::small_image_task();
  RunLog log("");
  std::vector<std::string> lines;
  log.follow([&lines](const std::string& line) { lines.push_back(line); });
  const std::vector<std::string> names = {"a", "b", "c", "d", "e", "f", "g"};
  const auto predict = [&] {
    log_predictions(*task.model, task.set, task.transform, names, {.batch = 6}, test::lone_world(),
                    log);
  };
  predict();
  REQUIRE(lines.size() == 2);
  CHECK_THAT(lines[0], Catch::Matchers::ContainsSubstring("confusion"));
  for (const nn::NamedParameter& named : task.model->named_parameters()) {
    named.parameter.tensor().copy_from(Tensor::full(named.parameter.shape(), NAN));
  }
  predict();
  CHECK(lines.size() == 2);
}

}  // namespace
}  // namespace tessera::train
