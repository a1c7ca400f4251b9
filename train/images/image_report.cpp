#include "train/images/image_report.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "core/ops.h"
#include "train/images/evaluation_pass.h"

namespace tessera::train {
namespace {

constexpr int64_t most_mistakes = 24;
constexpr int64_t most_side = 64;  // greatest width or height of a thumbnail, in pixels

struct Prediction {
  int32_t guess = 0;
  float probability = 0;
};

// Returns the class of the largest logit, and the softmax probability of this class. If several
// classes share the largest logit, takes the first of them.
Prediction prediction_of(std::span<const float> logits) {
  const auto largest = std::ranges::max_element(logits);
  double sum = 0;
  for (const float logit : logits) {
    sum += std::exp(static_cast<double>(logit) - static_cast<double>(*largest));
  }
  return {static_cast<int32_t>(largest - logits.begin()), static_cast<float>(1 / sum)};
}

void judge(const Tensor& logits, const Tensor& labels, std::span<float> results) {
  const Tensor scores = ops::convert(logits, DType::f32).to_host();
  const auto classes = static_cast<size_t>(scores.size(1));
  for (size_t row = 0; row < static_cast<size_t>(labels.elements()); ++row) {
    const Prediction prediction =
        prediction_of(scores.values<float>().subspan(row * classes, classes));
    results[2 * row] = static_cast<float>(prediction.guess);
    results[2 * row + 1] = prediction.probability;
  }
}

std::string base64(std::span<const uint8_t> bytes) {
  constexpr std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    uint32_t group = 0;
    for (size_t k = 0; k < 3; ++k) group = group << 8 | (k < count ? bytes[i + k] : 0u);
    for (size_t k = 0; k < 4; ++k) {
      text += k <= count ? digits[group >> (18 - 6 * k) & 63] : '=';
    }
  }
  return text;
}

// Returns an image as JSON. Shrinks a large image: each square of `factor` x `factor` pixels
// becomes one pixel with the square's mean value. Pixels beyond the last whole square are left out.
// If the image has fewer than `factor` rows or columns, the squares are cut to the image.
JsonObject thumbnail(const data::ImageView& image) {
  const auto& [height, width, channels] = image.shape;
  const int64_t factor = (std::max(height, width) + most_side - 1) / most_side;
  const int64_t rows = std::max<int64_t>(1, height / factor);
  const int64_t columns = std::max<int64_t>(1, width / factor);
  std::vector<uint8_t> pixels;
  for (int64_t y = 0; y < rows; ++y) {
    for (int64_t x = 0; x < columns; ++x) {
      for (int64_t c = 0; c < channels; ++c) {
        int64_t sum = 0;
        int64_t count = 0;
        for (int64_t i = y * factor; i < std::min(height, (y + 1) * factor); ++i) {
          for (int64_t j = x * factor; j < std::min(width, (x + 1) * factor); ++j, ++count) {
            sum += image.pixels[(i * width + j) * channels + c];
          }
        }
        pixels.push_back(static_cast<uint8_t>(sum / count));
      }
    }
  }
  return JsonObject()
      .add("width", columns)
      .add("height", rows)
      .add("channels", channels)
      .add("pixels", base64(pixels));
}

JsonObject confusion_line(const data::ImageSet& set, const std::vector<Prediction>& predictions,
                          const std::vector<std::string>& class_names) {
  std::map<std::pair<int32_t, int32_t>, int64_t> counts;
  for (int64_t i = 0; i < set.size(); ++i) {
    ++counts[{set.label(i), predictions[static_cast<size_t>(i)].guess}];
  }
  std::vector<std::string> entries;
  for (const auto& [pair, count] : counts) {
    entries.push_back(fmt::format("[{},{},{}]", pair.first, pair.second, count));
  }
  std::vector<std::string> names;
  for (const std::string& name : class_names) names.push_back(json_string(name));
  return JsonObject()
      .add("type", "confusion")
      .add("images", set.size())
      .raw("classes", fmt::format("[{}]", fmt::join(names, ",")))
      .raw("counts", fmt::format("[{}]", fmt::join(entries, ",")));
}

JsonObject mistakes_line(const data::ImageSet& set, const std::vector<Prediction>& predictions,
                         const std::vector<std::string>& class_names) {
  std::vector<int64_t> wrong;
  for (int64_t i = 0; i < set.size(); ++i) {
    if (predictions[static_cast<size_t>(i)].guess != set.label(i)) wrong.push_back(i);
  }
  std::ranges::stable_sort(wrong, std::ranges::greater{}, [&](int64_t i) {
    return predictions[static_cast<size_t>(i)].probability;
  });
  if (std::ssize(wrong) > most_mistakes) wrong.resize(most_mistakes);
  std::vector<std::string> images;
  data::ImageMemory memory;
  const auto name_of = [&](int32_t label) { return class_names[static_cast<size_t>(label)]; };
  for (const int64_t i : wrong) {
    const Prediction& prediction = predictions[static_cast<size_t>(i)];
    images.push_back(JsonObject()
                         .add("name", set.name(i))
                         .add("truth", name_of(set.label(i)))
                         .add("guess", name_of(prediction.guess))
                         .add("probability", prediction.probability)
                         .append(thumbnail(set.read(i, memory)))
                         .text());
  }
  return JsonObject()
      .add("type", "mistakes")
      .raw("images", fmt::format("[{}]", fmt::join(images, ",")));
}

}  // namespace

void log_predictions(nn::Module& model, const std::shared_ptr<const data::ImageSet>& set,
                     const data::ImageTransformOptions& transform,
                     const std::vector<std::string>& class_names, const EvaluationWork& work,
                     const dist::World& world, RunLog& log) {
  const std::vector<float> results =
      evaluation_pass(model, set, transform, work, world, 2, true, judge);
  if (world.rank != 0) return;
  std::vector<Prediction> predictions;
  for (size_t i = 0; i < static_cast<size_t>(set->size()); ++i) {
    predictions.push_back({static_cast<int32_t>(results[2 * i]), results[2 * i + 1]});
  }
  const auto is_finite = [](const Prediction& one) { return std::isfinite(one.probability); };
  const auto invalid = std::ssize(predictions) - std::ranges::count_if(predictions, is_finite);
  if (invalid > 0) {
    spdlog::warn(
        "the report shows no predictions, because the scores of {} of {} images are not finite",
        invalid, predictions.size());
    return;
  }
  log.write(confusion_line(*set, predictions, class_names));
  log.write(mistakes_line(*set, predictions, class_names));
}

}  // namespace tessera::train
