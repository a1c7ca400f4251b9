#include "train/sample.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/ops.h"
#include "core/random.h"

namespace tessera::train {
namespace {

// Returns at most `count` tokens, the likeliest first. Equally likely tokens are in ascending
// order.
std::vector<int32_t> likeliest(std::span<const float> logits, int64_t count) {
  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto kept = std::min<int64_t>(count, std::ssize(order));
  const auto likelier = [logits](int32_t a, int32_t b) {
    const float x = logits[static_cast<size_t>(a)];
    const float y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  };
  std::partial_sort(order.begin(), order.begin() + kept, order.end(), likelier);
  order.resize(static_cast<size_t>(kept));
  return order;
}

}  // namespace

int32_t choose_token(std::span<const float> logits, const SampleOptions& options,
                     int64_t position) {
  for (const float logit : logits) {
    if (std::isnan(logit)) throw NanLogits("sample: the model's logits are not numbers");
  }
  const bool greedy = options.temperature == 0;
  const int64_t k = greedy ? 1 : options.top_k > 0 ? options.top_k : std::ssize(logits);
  const std::vector<int32_t> candidates = likeliest(logits, k);
  if (candidates.size() == 1) return candidates[0];

  const double highest = logits[static_cast<size_t>(candidates[0])];
  std::vector<double> weights;
  for (const int32_t token : candidates) {
    weights.push_back(
        std::exp((logits[static_cast<size_t>(token)] - highest) / options.temperature));
  }
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  RandomStream stream(options.seed, "sample", static_cast<uint64_t>(position));
  double left = stream.uniform() * sum;  // in (0, sum]
  for (size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left <= 0) return candidates[i];
  }
  // Reached only in two cases. Rounding errors can make `left` end slightly above 0. If the highest
  // logit is infinite, `left` is NaN.
  return candidates[0];
}

void check_prompt(std::span<const int32_t> prompt, const models::GptConfig& config) {
  if (prompt.empty()) fail_input("the prompt is empty");
  for (const int32_t token : prompt) {
    if (token < 0 || token >= config.vocab) {
      fail_input("the prompt's token {} is beyond the model's vocabulary of {}", token,
                 config.vocab);
    }
  }
}

void sample(models::Gpt& model, std::vector<int32_t> prompt, const SampleOptions& options,
            const std::function<void(int32_t)>& emit) {
  const models::GptConfig& config = model.config();
  check_prompt(prompt, config);
  const nn::Evaluating evaluating(model);
  NoGrad no_grad;
  std::vector<int32_t>& text = prompt;
  for (int64_t position = 0; position < options.tokens; ++position) {
    const auto window = static_cast<size_t>(std::min(std::ssize(text), config.context));
    const std::span<const int32_t> seen = std::span<const int32_t>(text).last(window);
    const auto length = static_cast<int64_t>(window);
    const Tensor logits = ops::convert(
        model.next_logits(Tensor::from<int32_t>({1, length}, seen)), DType::f32);
    const Tensor here = logits.to_host();
    text.push_back(choose_token(here.values<float>(), options, position));
    emit(text.back());
  }
}

int32_t default_prompt(const models::GptConfig& config, bool bytes) {
  if (bytes) return config.vocab > '\n' ? '\n' : 0;
  return config.vocab == 50257 ? 50256 : 0;
}

std::string token_text(int32_t token, bool bytes) {
  if (!bytes) return std::to_string(token) + " ";
  return token < 256 ? std::string(1, static_cast<char>(token)) : "?";
}

}  // namespace tessera::train
