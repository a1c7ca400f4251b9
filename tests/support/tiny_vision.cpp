#include "tests/support/tiny_vision.h"

#include "core/image_ops.h"
#include "core/ops.h"
#include "core/random.h"

namespace tessera::test {

TinyImages tiny_images(const TinyVision& run, const MicroBatch& micro) {
  const auto [side, channels, classes] = run.model.sizes;
  const int64_t elements = side * side * channels;
  std::vector<float> pixels;
  std::vector<int32_t> labels;
  for (int64_t s = 0; s < micro.samples; ++s) {
    const auto sample =
        static_cast<uint64_t>(micro.step * run.batch.global + micro.first_sample + s);
    RandomStream stream(11, "tiny images", sample);
    labels.push_back(static_cast<int32_t>(stream.below(static_cast<uint64_t>(classes))));
    // An image has a brightness that depends on its class, plus noise.
    const float level = static_cast<float>(labels.back()) / static_cast<float>(classes);
    for (int64_t i = 0; i < elements; ++i) pixels.push_back(level + stream.uniform());
  }
  return {ops::convert(Tensor::from({micro.samples, side, side, channels}, pixels), run.dtype),
          Tensor::from({micro.samples}, labels)};
}

Training tiny_training(const TinyVision& run, models::ResNet& model) {
  return {
      .steps = run.steps,
      .batch = run.batch,
      .rule =
          optim::Sgd{
              .learning_rate = 0.05f, .momentum = 0.9f, .weight_decay = 1e-3f, .nesterov = true},
      .loss = [run, &model](const MicroBatch& micro) {
        const auto [images, labels] = tiny_images(run, micro);
        return ops::smoothed_cross_entropy(model(images), labels, 0.1f);
      }};
}

Weights statistics_of(const nn::Module& model) {
  Weights values;
  for (const auto& [name, statistics] : model.named_statistics()) {
    const Tensor mean = statistics->mean.to_host();
    const Tensor variance = statistics->variance.to_host();
    values[name + ".mean"].assign(mean.values<float>().begin(), mean.values<float>().end());
    values[name + ".variance"].assign(variance.values<float>().begin(),
                                      variance.values<float>().end());
  }
  return values;
}

TrainingResult train_tiny(const TinyVision& run, const dist::World& world,
                          optim::ZeroOptions options) {
  models::ResNet model(run.model);
  model.to(run.dtype);
  TrainingResult result = train(model, tiny_training(run, model), world, std::move(options));
  result.weights.merge(statistics_of(model));
  return result;
}

}  // namespace tessera::test
