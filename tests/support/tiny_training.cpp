#include "tests/support/tiny_training.h"

#include "core/random.h"

namespace tessera::test {

TinyBatch tiny_batch(const TinyRun& run, const MicroBatch& micro) {
  const int64_t context = run.model.context;
  TinyBatch batch{Tensor::empty({micro.samples, context}, DType::i32),
                  Tensor::empty({micro.samples, context}, DType::i32)};
  for (int64_t s = 0; s < micro.samples; ++s) {
    const auto sample =
        static_cast<uint64_t>(micro.step * run.batch.global + micro.first_sample + s);
    RandomStream stream(7, "tiny batch", sample);
    auto token = static_cast<int32_t>(stream.below(static_cast<uint64_t>(run.model.vocab)));
    for (int64_t t = 0; t < context; ++t) {
      batch.tokens.data<int32_t>()[s * context + t] = token;
      // The next token follows from a rule that a model can learn, with some noise.
      token = static_cast<int32_t>((token * 5 + 3 + static_cast<int32_t>(stream.below(2))) %
                                   run.model.vocab);
      batch.targets.data<int32_t>()[s * context + t] = token;
    }
  }
  return batch;
}

Training tiny_training(const TinyRun& run, models::Gpt& model) {
  return {.steps = run.steps,
          .batch = run.batch,
          .rule = optim::AdamW{.learning_rate = 1e-2f},
          .loss = [run, &model](const MicroBatch& micro) {
            const auto [tokens, targets] = tiny_batch(run, micro);
            return model.loss(tokens, targets);
          }};
}

TrainingResult train_tiny(const TinyRun& run, const dist::World& world,
                          optim::ZeroOptions options) {
  models::Gpt model(run.model);
  model.to(run.dtype);
  return train(model, tiny_training(run, model), world, std::move(options));
}

}  // namespace tessera::test
